"""The sources of recipes: copies of the needed graphs as one graph, with all state as inputs (decision 2)."""

from __future__ import annotations

import onnx_ir as ir

from onward.errors import Diagnostic, ModelError
from onward.graph import edit
from onward.graph.builder import Names, Value
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.passes.base import STATE_AS_INPUTS, Unit
from onward.passes.inline import M301


def state_names(model: TrainingModel) -> list[str]:
    """Return the initializers that any binding of any entry replaces, in order of first mention."""
    names: dict[str, None] = {}
    for entry in model.entries:
        names.update((k, None) for k in [*entry.update_binding, *entry.initialization_binding])
    return list(names)


def combined(model: TrainingModel, entry: TrainingEntry | None) -> Unit:
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
    return Unit(
        TrainingModel(_model(graph, model)),
        entry=entry,
        model_outputs=tuple(model.outputs),
        data=data,
        settings=settings,
        state=state,
        facts={STATE_AS_INPUTS},
    )


def inference(model: TrainingModel, entry: TrainingEntry | None) -> Unit:
    """Return a copy of the inference graph alone."""
    return combined(model, None)


def initialization(model: TrainingModel, entry: TrainingEntry | None) -> Unit:
    """Return the initialization graphs of all entries as one graph, with outputs as in `initialization_binding`.

    The entry of the unit binds each state to the value that initialises it.
    """
    outputs: dict[str, str] = {}
    nodes: list[ir.Node] = []
    constants: list[Value] = []
    names = Names()
    for each in model.entries:
        if each.initialization is None or not each.initialization_binding:
            continue
        copied = edit.copy_graph(each.initialization, names=names)
        produced = dict(zip([v.name for v in each.initialization.outputs], copied.outputs, strict=True))
        missing = [v for v in each.initialization_binding.values() if v not in produced]
        if missing:
            raise ModelError(
                Diagnostic(
                    M301,
                    f"the initialization has no output {', '.join(f'`{m}`' for m in missing)}",
                    hint="run `onward check` on the file",
                )
            )
        outputs.update({key: produced[value].name or "" for key, value in each.initialization_binding.items()})
        constants += list(copied.initializers.values())
        moved = list(copied)
        copied.outputs.clear()
        copied.remove(moved)
        for constant in list(copied.initializers.values()):
            copied.initializers.pop(constant.name or "")
        nodes += moved
    graph = ir.Graph([], [], nodes=nodes, initializers=constants, name="initialize",
                     opset_imports=dict(model.ir.opset_imports))  # fmt: skip
    bound = TrainingEntry(initialization_binding=outputs)
    return Unit(TrainingModel(_model(graph, model)), entry=bound, facts={STATE_AS_INPUTS}, _names=names)


def _model(graph: ir.Graph, model: TrainingModel) -> ir.Model:
    return ir.Model(graph, ir_version=model.ir.ir_version, functions=[f.clone() for f in model.ir.functions.values()])
