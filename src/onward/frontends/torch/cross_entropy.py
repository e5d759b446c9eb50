"""Export cross-entropy with label smoothing or class probabilities, which PyTorch's exporter ignores."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.frontends.torch.float64_constants import number
from onward.model.training_model import FLOAT_TYPES

_REDUCTIONS = ("none", "mean", "sum")


def cross_entropy_loss(
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Return the loss as PyTorch defines it; onnxscript ignores `label_smoothing` and accepts class indices only."""
    from onnxscript import opset20 as op

    indices = ir.DataType(int(target.dtype)) not in FLOAT_TYPES
    if indices and not label_smoothing:
        loss, _ = op.SoftmaxCrossEntropyLoss(
            self, target, weight, reduction=_REDUCTIONS[reduction], ignore_index=ignore_index
        )
        return loss
    rank = len(self.shape)
    axis = 1 if rank > 1 else 0

    logs = op.LogSoftmax(self, axis=axis)
    if weight is not None:
        shape = op.Constant(value_ints=[1, -1] + [1] * (rank - 2)) if rank > 1 else op.Constant(value_ints=[-1])
        logs = op.Mul(logs, op.Reshape(weight, shape))
    classes = op.Constant(value_ints=[axis])
    count = op.Squeeze(op.Gather(op.Shape(self), classes))
    even = op.Div(op.ReduceSum(logs, classes, keepdims=0), op.CastLike(count, self))
    if indices:
        kept = op.Not(op.Equal(target, op.CastLike(op.Constant(value_int=ignore_index), target)))
        safe = op.Where(kept, target, op.CastLike(op.Constant(value_int=0), target))
        chosen = op.Squeeze(op.GatherElements(logs, op.Unsqueeze(safe, classes), axis=axis), classes)
        share = op.CastLike(kept, self)
    else:
        chosen = op.ReduceSum(op.Mul(logs, target), classes, keepdims=0)
    mixed = op.Add(
        op.Mul(number(op, 1.0 - label_smoothing, self), chosen), op.Mul(number(op, label_smoothing, self), even)
    )
    loss = op.Neg(op.Mul(mixed, share) if indices else mixed)
    if reduction == 0:
        return loss
    total = op.ReduceSum(loss, keepdims=0)
    if reduction == 2:
        return total
    if not indices:
        return op.Div(total, op.CastLike(op.Size(loss), self))
    counted = share if weight is None else op.Mul(share, op.Gather(weight, safe))
    return op.Div(total, op.ReduceSum(counted, keepdims=0))
