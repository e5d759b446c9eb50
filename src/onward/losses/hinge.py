"""Hinge."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss


@dataclasses.dataclass(frozen=True)
class Hinge(ElementwiseLoss):
    """max(0, margin - y·output) for labels y of -1 and 1, squared if `squared`: the loss of a linear SVM, as Keras."""

    margin: float = 1.0
    squared: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("margin", self.margin, "Hinge", low=0.0)

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        distance = op.Relu(op.Sub(self.margin, op.Mul(label, output)))
        return op.Mul(distance, distance) if self.squared else distance
