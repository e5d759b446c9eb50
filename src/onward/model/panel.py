"""How a training model shows itself in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterable

import onnx_ir as ir

from onward import notebook
from onward.errors import counted
from onward.model.text import shape_text, type_text
from onward.model.training_model import TrainingEntry, TrainingModel


def model_html(model: TrainingModel) -> str:
    """Return inputs, outputs, weights and training entries of a model as HTML.

    >>> from onward.samples import build
    >>> "cross" in model_html(build("digits")).lower()
    True
    """
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    told = {
        "inputs": _values(inputs),
        "outputs": _values(model.graph.outputs),
        "nodes": f"{len(list(model.graph))} (opset {model.opset})",
        "trained": _weights(model.parameters.values()),
        "frozen": _weights(model.frozen.values()),
        "state": _weights(model.state.values()),
    }
    entries = [notebook.facts(_entry(entry)) for entry in model.entries]
    kind = "Training model" if model.entries else "Inference model"
    return notebook.panel(f"{kind} {model.graph.name or ''}".strip(), notebook.facts(told), *entries)


def _values(values: Iterable[ir.Value]) -> str:
    return ", ".join(f"{v.name} {type_text(v)} {shape_text(v)}" for v in values)


def _weights(values: Iterable[ir.Value]) -> str:
    sizes = [int(v.const_value.size) for v in values if v.const_value is not None]
    return f"{counted(len(sizes), 'tensor')}, {counted(sum(sizes), 'number')}" if sizes else ""


def _entry(entry: TrainingEntry) -> dict[str, str]:
    graph = entry.algorithm
    if graph is None:
        return {"entry": entry.name}
    try:
        optimizer = json.loads(graph.metadata_props.get("onward.optimizer", "{}"))
    except ValueError:  # another tool's text under our key
        optimizer = {}
    return {
        "entry": entry.name,
        "targets": _values(v for v in graph.inputs if v.name not in graph.initializers),
        "loss": graph.metadata_props.get("onward.loss", ""),
        "optimizer": ", ".join(f"{k}={v}" for k, v in sorted(optimizer.items()) if v not in (None, {}, [])),
    }
