"""The standard's combined graph of one training entry, with all state as pure graph inputs (decision 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onward.autodiff import function_bodies as expand
from onward.autodiff.lowering import lower_model
from onward.autodiff.registry import is_own
from onward.errors import Diagnostic, ModelError, define
from onward.graph import edit, walk
from onward.graph.builder import Builder, Names, Value
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.upgrade.microsoft import decompose_microsoft

M301 = define(
    "M301",
    "the model cannot be compiled",
    why="A part of the model has no plain form.",
    fix="Change that part as the message says.",
)


@dataclasses.dataclass
class Combined:
    """A graph under construction: `values` maps the values of the source graphs to those of the copy."""

    model: ir.Model
    values: dict[Value, Value]
    names: Names
    data: list[Value]  # batch inputs: of the inference graph, then of the algorithm
    settings: list[Value]  # inputs with a default
    state: list[Value]

    @property
    def graph(self) -> ir.Graph:
        return self.model.graph

    @property
    def opset(self) -> int:
        return self.model.opset_imports.get("", 1)


def state_names(model: TrainingModel) -> list[str]:
    """Return the initializers that any binding of any entry replaces, in order of first mention."""
    names: dict[str, None] = {}
    for entry in model.entries:
        names.update((k, None) for k in [*entry.update_binding, *entry.initialization_binding])
    return list(names)


def combine(model: TrainingModel, entry: TrainingEntry | None) -> Combined:
    """Return a copy of the inference graph and, if given, the entry's algorithm as one graph without outputs.

    Initializers that training replaces are inputs; inputs of the algorithm with a default are inputs too (settings);
    every other initializer is a constant.
    """
    bound = set(state_names(model))
    values: dict[Value, Value] = {}
    data: list[Value] = []
    settings: list[Value] = []
    state: list[Value] = []
    constants: list[Value] = []
    sources = [model.graph] + ([entry.algorithm] if entry is not None and entry.algorithm is not None else [])
    for source in sources:
        if source.meta.get("onward.sparse_initializer"):
            raise ModelError(
                Diagnostic(
                    M301,
                    "sparse initializers cannot be trained or compiled",
                    place=f"graph `{source.name}`",
                    hint="store the weights as dense initializers",
                )
            )
        defaults = {v.name for v in source.inputs if v.name in source.initializers}
        for name, value in source.initializers.items():
            copy = edit.copy_value(value)
            values[value] = copy
            if name in bound:
                copy.const_value = None
                state.append(copy)
            elif name in defaults and source is not model.graph:
                copy.const_value = None
                settings.append(copy)
            else:
                constants.append(copy)
        for value in source.inputs:
            if value.name not in source.initializers:
                values[value] = edit.copy_value(value)
                data.append(values[value])
    nodes: list[ir.Node] = []
    for source in sources:
        nodes += edit.copy_nodes(source, values)
    graph = ir.Graph(
        [*data, *settings, *state],
        [],
        nodes=nodes,
        initializers=constants,
        opset_imports=dict(model.ir.opset_imports),
        name=(entry.name if entry is not None else model.graph.name) or "graph",
    )
    combined = ir.Model(
        graph, ir_version=model.ir.ir_version, functions=[f.clone() for f in model.ir.functions.values()]
    )
    names = Names(walk.all_names(graph))
    return Combined(combined, values, names, data, settings, state)


def inline_functions(combined: Combined, *, keep_own_rules: bool = False) -> None:
    """Replace every call of a model-local function by its body, to any depth; its Gradient nodes are lowered first.

    Operators of com.microsoft become standard ones, too. With `keep_own_rules`, functions that have a gradient rule of
    their own (`register_gradient`) stay calls: they are for a second time, after the Gradient nodes were lowered.
    """
    model = combined.model
    decompose_microsoft(model)
    if not model.functions:
        return
    lower_model(ir.Model(ir.Graph([], [], nodes=[], opset_imports=dict(model.opset_imports)), ir_version=10,
                         functions=list(model.functions.values())))  # fmt: skip
    own = {key for key in model.functions if keep_own_rules and is_own(key[1], key[0])}
    combined.names.taken |= walk.all_names(combined.graph)
    _inline(combined.graph, model, combined.names, own)
    if own:
        return
    for key in list(model.functions):
        del model.functions[key]


def _inline(graph: walk.GraphLike, model: ir.Model, names: Names, kept: Collection[ir.OperatorIdentifier] = ()) -> None:
    queue = list(graph)
    while queue:
        node = queue.pop(0)
        for sub in walk.subgraphs(node):
            _inline(sub, model, names, kept)
        key = (node.domain, node.op_type, node.overload)
        function = model.functions.get(key)
        if function is not None and key not in kept:
            for domain, version in function.opset_imports.items():
                known = model.opset_imports.setdefault(domain, version)
                if known != version and domain == "":
                    _check_same_meaning(function, version, known)
            queue = expand.inline_call(node, function, names) + queue


def _check_same_meaning(function: ir.Function, version: int, wanted: int) -> None:
    from onward.graph.schema import schema

    for node in function:
        if node.domain != "":
            continue
        own, new = schema(node.op_type, "", version), schema(node.op_type, "", wanted)
        if own is not None and new is not None and own.since_version != new.since_version and min(version, wanted) < 18:
            raise ModelError(
                Diagnostic(
                    M301,
                    f"function `{function.name}` uses opset {version} where the model uses {wanted}, and "
                    f"`{node.op_type}` differs between them",
                    hint="export the model with one opset for all functions",
                )
            )


def set_outputs(combined: Combined, outputs: list[tuple[str, Value]]) -> None:
    """Make `outputs` the graph's outputs under their names.

    A value is renamed where that takes its name from nobody; an Identity hands on inputs, and values that serve twice.
    """
    graph = combined.graph
    op = Builder(combined.opset, combined.names)
    wanted = {name for name, _ in outputs}
    final: list[Value] = []
    for name, value in outputs:
        producer = value.producer()
        keeps_its_name = value.name != name and value.name in wanted
        if value in final or producer is None or producer.op_type == "Constant" or keeps_its_name:
            copy = op.Identity(value)
            copy.type, copy.shape = value.type, value.shape
            value = copy
        if value.name != name:
            value.name = combined.names.unique(name)
        final.append(value)
    graph.extend(op.nodes)
    graph.outputs.extend(final)


def tensor_array(value: Value) -> np.ndarray:
    """Return the stored array of an initializer."""
    tensor = value.const_value
    assert tensor is not None, f"initializer {value.name} has no value"
    return np.asarray(tensor.numpy())
