"""Binary cross entropy of logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss, element_type


@dataclasses.dataclass(frozen=True)
class BCEWithLogits(ElementwiseLoss):
    """(1 - y)·x + (1 + (w - 1)·y)·log(1 + e⁻ˣ): `binary_cross_entropy_with_logits` of PyTorch.

    Finite for any logit, and with the right gradient at x = 0, where a fresh last layer starts.

    Args:
        pos_weight: w, a number or one per entry of the last axis: how much the positive class counts.
    """

    pos_weight: float | Sequence[float] | None = None

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        rest = op.Mul(op.Sub(1.0, label), output)
        logarithm = _softplus_of_negative(op, output)
        if self.pos_weight is not None:
            extra = op.constant(np.asarray(self.pos_weight, np.float64) - 1.0, element_type(output, self))
            logarithm = op.Mul(op.Add(op.Mul(label, extra), 1.0), logarithm)
        return op.Add(rest, logarithm)


def _softplus_of_negative(op: Builder, x: Value) -> Value:
    """log(1 + e⁻ˣ) without overflow.

    Written with Where and not with Abs and Max: those have a kink at 0, and rules that choose a slope for each kink
    would together choose a wrong one for this smooth function.
    """
    positive = op.GreaterOrEqual(x, 0.0)
    negated = op.Neg(x)
    decaying = op.Exp(op.Where(positive, negated, x))
    straight = op.Where(positive, 0.0, negated)
    return op.Add(straight, op.Log(op.Add(decaying, 1.0)))
