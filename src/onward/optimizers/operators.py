"""Emitting ONNX's own optimizer operators (ai.onnx.preview.training version 1)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.graph.builder import Value
from onward.graph.schema import TRAINING_DOMAIN
from onward.optimizers.base import Group, Optimizer, Updated, decay


def is_exact(group: Group) -> bool:
    """Return whether ONNX's operators are exact for these parameters: their float32 attributes are not for float64."""
    return group.parameters[0].value.dtype != ir.DataType.DOUBLE


def emit_decayed(optimizer: Optimizer, group: Group, op_type: str, step: Value, **attributes: Any) -> list[Updated]:
    """Emit one node for a whole group; the operator applies L2, decoupled decay shrinks X before it."""
    values = [p.value for p in group.parameters]
    if optimizer.decoupled:
        values = [decay(group.op, optimizer, group.rate, p.value, p.gradient)[0] for p in group.parameters]
    norm = 0.0 if optimizer.decoupled else float(optimizer.weight_decay)
    gradients = [p.gradient for p in group.parameters]
    return emit_operator(group, op_type, values, gradients, group.rate, step, **attributes, norm_coefficient=norm)


def emit_operator(
    group: Group, op_type: str, values: list[Value], gradients: list[Value], rate: Value, step: Value, **attributes: Any
) -> list[Updated]:
    """Emit one node for a whole group; its tensors are grouped by kind, as the standard requires.

    `values` and `gradients` are the operator's X and G, which may differ from those of the group.
    """
    names = list(group.parameters[0].slots)
    count = len(group.parameters)
    tensors = [*values, *gradients, *(p.slots[n] for n in names for p in group.parameters)]
    outputs = group.op.call(
        op_type, [rate, step, *tensors], domain=TRAINING_DOMAIN, outputs=count * (1 + len(names)), **attributes
    )
    results = []
    for index, parameter in enumerate(group.parameters):
        olds = [parameter.value, *(parameter.slots[n] for n in names)]
        news = [outputs[index + kind * count] for kind in range(1 + len(names))]
        for new, old in zip(news, olds, strict=True):
            new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        results.append((news[0], dict(zip(names, news[1:], strict=True))))
    return results
