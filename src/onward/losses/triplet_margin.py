"""Triplet margin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, ReducedLoss


@dataclasses.dataclass(frozen=True)
class TripletMargin(ReducedLoss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin): `torch.nn.functional.triplet_margin_loss`.

    Reads three outputs (anchor, positive, negative) and no labels; d is the p-norm of the difference plus epsilon.

    Args:
        swap: use d(positive, negative) instead of d(anchor, negative) if it is smaller.
    """

    margin: float = 1.0
    p: float = 2.0
    epsilon: float = 1e-6
    swap: bool = False
    num_outputs: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("margin", self.margin, "TripletMargin", above=0.0)
        check_number("p", self.p, "TripletMargin", above=0.0)
        check_number("epsilon", self.epsilon, "TripletMargin", low=0.0)

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        return []

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        anchor, positive, negative = outputs
        near, far = self._distance(op, anchor, positive), self._distance(op, anchor, negative)
        if self.swap:
            far = op.Min(far, self._distance(op, positive, negative))
        return self.reduce(op, op.Relu(op.Add(op.Sub(near, far), self.margin)))

    def _distance(self, op: Builder, left: Value, right: Value) -> Value:
        difference = op.Add(op.Sub(left, right), self.epsilon)
        if self.p == 2:
            return op.Sqrt(op.ReduceSum(op.Mul(difference, difference), [-1], keepdims=0))
        if self.p == 1:
            return op.ReduceSum(op.Abs(difference), [-1], keepdims=0)
        return op.Pow(op.ReduceSum(op.Pow(op.Abs(difference), self.p), [-1], keepdims=0), 1.0 / self.p)
