"""Binary cross entropy of probabilities."""

from __future__ import annotations

import dataclasses

from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss, Scale

_LOWEST = -100.0  # PyTorch's lower bound of the logarithm


@dataclasses.dataclass(frozen=True)
class BCE(ElementwiseLoss):
    """-(y·log p + (1 - y)·log(1 - p)) with logarithms clamped at -100: `binary_cross_entropy` of PyTorch.

    Where p is exactly 0 or 1, the gradient is 0 because of the clamp; `BCEWithLogits` has no such point.
    """

    def expects(self) -> Scale:
        return Scale.PROBABILITIES

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        yes = op.Mul(label, _logarithm(op, output))
        no = op.Mul(op.Sub(1.0, label), _logarithm(op, op.Sub(1.0, output)))
        return op.Neg(op.Add(yes, no))


def _logarithm(op: Builder, p: Value) -> Value:
    """Return max(log p, -100) with a finite gradient everywhere: 1/p is never computed at p = 0."""
    positive = op.Greater(p, 0.0)
    safe = op.Where(positive, p, 1.0)
    return op.Where(positive, op.Max(op.Log(safe), _LOWEST), _LOWEST)
