"""Huber."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss


@dataclasses.dataclass(frozen=True)
class Huber(ElementwiseLoss):
    """d²/2 where |d| ≤ delta, else delta·(|d| - delta/2), with d = output - label: `huber_loss`."""

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("delta", self.delta, "Huber", above=0.0)

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        difference = op.Sub(output, label)
        size = op.Abs(difference)
        square = op.Mul(op.Mul(difference, difference), 0.5)
        straight = op.Mul(op.Sub(size, 0.5 * self.delta), self.delta)
        return op.Where(op.LessOrEqual(size, self.delta), square, straight)
