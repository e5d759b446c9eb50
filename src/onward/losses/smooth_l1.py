"""Smooth L1."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss


@dataclasses.dataclass(frozen=True)
class SmoothL1(ElementwiseLoss):
    """d²/(2·beta) where |d| < beta, else |d| - beta/2, with d = output - label: `smooth_l1_loss` of PyTorch."""

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("beta", self.beta, "SmoothL1", low=0.0)

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        difference = op.Sub(output, label)
        size = op.Abs(difference)
        if self.beta == 0:
            return size
        square = op.Mul(op.Mul(difference, difference), 0.5 / self.beta)
        return op.Where(op.Less(size, self.beta), square, op.Sub(size, 0.5 * self.beta))
