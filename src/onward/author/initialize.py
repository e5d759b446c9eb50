"""The initialization graph: how the model's weights and state are set afresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.model.builder import Builder, Names, Value
from onward.model.training_model import TrainingEntry
from onward.optimizers.emit import Update, const_array

Initialize = str | Mapping[str, Any]


def build_initialization(
    entry: TrainingEntry,
    parameters: Sequence[Value],
    statistics: Sequence[Value],
    update: Update,
    initialize: Initialize,
    opset: int,
    seed: int,
) -> None:
    """Give `entry` an initialization graph, with what it writes where."""
    op = Builder(opset, Names())
    outputs: dict[str, Value] = {}
    for state in update.state:
        name = state.name or ""
        if name in update.like:
            continue
        outputs[name] = _filled(op, state)
    for name, value in outputs.items():
        value.name = f"init/{name}"
    entry.initialization = ir.Graph([], list(outputs.values()), nodes=op.nodes, name="initialize")
    entry.initialization_binding = {k: v.name or "" for k, v in outputs.items()}


def _filled(op: Builder, state: Value) -> Value:
    array = const_array(state)
    first = array.reshape(-1)[:1]
    value: Value = op.ConstantOfShape(np.array(array.shape, np.int64), value=first)
    value.type, value.shape = state.type, None if state.shape is None else state.shape.copy()
    return value
