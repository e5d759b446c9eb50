"""Cosine embedding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, ReducedLoss, element_type, shape_of

_EPSILON = 1e-12  # PyTorch's


@dataclasses.dataclass(frozen=True)
class CosineEmbedding(ReducedLoss):
    """1 - cos(a, b) where the label is 1, max(0, cos(a, b) - margin) where it is -1: `cosine_embedding_loss`.

    Reads two outputs of shape [N, D] and labels of shape [N].
    """

    margin: float = 0.0
    num_outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("margin", self.margin, "CosineEmbedding", low=-1.0, high=1.0)

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        return [LabelSpec(element_type(outputs[0], self), shape_of(outputs[0], self)[:-1])]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        a, b = outputs
        label = labels[0]

        def dot(left: Value, right: Value) -> Value:
            return op.ReduceSum(op.Mul(left, right), [-1], keepdims=0)

        size = op.Sqrt(op.Mul(op.Add(dot(a, a), _EPSILON), op.Add(dot(b, b), _EPSILON)))
        cosine = op.Div(dot(a, b), size)
        alike = op.Where(op.Equal(label, 1.0), op.Sub(1.0, cosine), 0.0)
        apart = op.Where(op.Equal(label, -1.0), op.Relu(op.Sub(cosine, self.margin)), 0.0)
        return self.reduce(op, op.Add(alike, apart))
