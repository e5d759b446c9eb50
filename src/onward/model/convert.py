"""From a training model to the plain models it stands for: the combined graph, and inference alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic, unknown_name
from onward.model import serde
from onward.model.graphs import subgraphs
from onward.model.training_model import TrainingEntry, TrainingModel

_LARGE = 1024


def combined_proto(
    model: TrainingModel, entry: TrainingEntry, *, functions: Sequence[ir.Function] = (), weights: bool = True
) -> onnx.ModelProto:
    """Return the standard's combined graph of one entry: the inference graph, then the algorithm.

    `functions` are added to the model's own. Without `weights`, large initializers become inputs, which is enough for
    shape inference and costs no memory.
    """
    shell = ir.Model(ir.Graph([], [], nodes=[], name="empty"), ir_version=model.ir.ir_version)
    proto = ir.serde.serialize_model(shell)
    for domain, version in model.ir.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    imported = set(model.ir.opset_imports)
    for function in [*model.ir.functions.values(), *functions]:
        proto.functions.append(ir.serde.serialize_function(function))
        if function.domain not in imported:
            imported.add(function.domain)
            proto.opset_import.add(domain=function.domain, version=1)
    graph = proto.graph
    graph.Clear()
    graph.name = model.graph.name or "model"
    for part in [model.graph, entry.algorithm]:
        if part is None:
            continue
        stripped = [] if weights else _without_large(part)
        try:
            part_proto = ir.serde.serialize_graph(part)
        finally:
            for value, was_input in stripped:
                if not was_input:
                    part.inputs.remove(value)
                part.register_initializer(value)
        for field in ("input", "initializer", "output", "node", "value_info", "sparse_initializer"):
            getattr(graph, field).extend(getattr(part_proto, field))
    return proto


def _without_large(graph: ir.Graph) -> list[tuple[ir.Value, bool]]:
    """Turn large initializers into inputs; return them, with whether each was an input already."""
    moved = []
    for name, value in list(graph.initializers.items()):
        if value.const_value is not None and value.const_value.size > _LARGE:
            was_input = value.is_graph_input()
            graph.initializers.pop(name)
            if not was_input:
                graph.inputs.append(value)
            moved.append((value, was_input))
    return moved


def to_inference(model: serde.Source, state: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return a clean inference `ModelProto`: the same names and outputs, no training information.

    `state` holds current values by name (as `Session.get_state()` gives them): those of the inference graph's
    initializers replace the stored ones, the rest (moments, counters) is left out. Functions and operator sets that
    only training used are left out too.

    Raises:
        ArgumentError: a value in `state` has another shape than the initializer of its name.
    """
    source = serde.load(model)
    proto = serde.to_proto(TrainingModel(source.ir))
    clean = serde.from_proto(proto)
    if state is not None:
        _write_state(clean, source, state)
    _drop_unused(clean)
    return serde.to_proto(clean)


def _write_state(clean: TrainingModel, source: TrainingModel, state: Mapping[str, np.ndarray]) -> None:
    known = source.initializers()
    problems = []
    for name, array in state.items():
        if name not in known:
            raise unknown_name("initializer", name, known, place="state=")
        value = clean.graph.initializers.get(name)
        if value is None:
            continue
        assert value.const_value is not None
        stored = value.const_value
        array = np.asarray(array)
        if array.shape != tuple(stored.shape.numpy()) or array.dtype != stored.dtype.numpy():
            problems.append(
                Diagnostic(
                    A101,
                    f"the state of `{name}` does not fit",
                    place="state=",
                    found=f"{array.dtype} {list(array.shape)}",
                    needed=f"{stored.dtype.numpy()} {list(stored.shape.numpy())}",
                )
            )
            continue
        value.const_value = ir.tensor(array, name=name)
    if problems:
        raise ArgumentError(problems)


def _drop_unused(model: TrainingModel) -> None:
    """Remove functions and operator sets that the inference graph does not use."""
    used: set[tuple[str, str, str]] = set()
    domains: set[str] = {""}

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in graph:
            domains.add(node.domain)
            key = (node.domain, node.op_type, node.overload)
            if key in model.ir.functions and key not in used:
                used.add(key)
                visit(model.ir.functions[key])
            for inner in subgraphs(node):
                visit(inner)

    visit(model.graph)
    for key in list(model.ir.functions):
        if key not in used:
            del model.ir.functions[key]
    for domain in list(model.ir.opset_imports):
        if domain not in domains and domain != "ai.onnx":
            del model.ir.opset_imports[domain]
