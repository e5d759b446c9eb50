"""Binary cross entropy of logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss, Scale, element_type


@dataclasses.dataclass(frozen=True)
class BCEWithLogits(ElementwiseLoss):
    """(1 - y)·x + (1 + (w - 1)·y)·log(1 + e⁻ˣ): `binary_cross_entropy_with_logits` of PyTorch.

    Finite for any logit, and with the correct gradient at x = 0, the output of a zero last layer.

    Args:
        pos_weight: w, the weight of the positive class: a number, or one per entry of the last axis.
    """

    pos_weight: float | Sequence[float] | None = None

    def expects(self) -> Scale:
        return Scale.SIGMOID_LOGITS

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        rest = op.Mul(op.Sub(1.0, label), output)
        logarithm = softplus_of_negative(op, output)
        if self.pos_weight is not None:
            extra = op.constant(np.asarray(self.pos_weight, np.float64) - 1.0, element_type(output, self))
            logarithm = op.Mul(op.Add(op.Mul(label, extra), 1.0), logarithm)
        return op.Add(rest, logarithm)


def softplus_of_negative(op: Builder, x: Value) -> Value:
    """Return log(1 + e⁻ˣ) without overflow.

    Uses Where instead of Abs and Max: these have kinks at 0, and the slopes that their rules choose there would give
    this smooth function a wrong gradient.
    """
    positive = op.GreaterOrEqual(x, 0.0)
    negated = op.Neg(x)
    decaying = op.Exp(op.Where(positive, negated, x))
    straight = op.Where(positive, 0.0, negated)
    return op.Add(straight, op.Log(op.Add(decaying, 1.0)))
