"""Negative log likelihood."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, ReducedLoss, Scale, shape_of
from onward.losses.cross_entropy import check_ignore_index, class_axis, class_weight, classes_second


@dataclasses.dataclass(frozen=True)
class NLL(ReducedLoss):
    """-log p of the labelled class, where the output holds log-probabilities: `torch.nn.functional.nll_loss`.

    Args:
        weight: one weight per class; "mean" divides by the sum of the weights used.
        ignore_index: a label to ignore. None: no such label.
        axis: the axis of the classes, 1 or -1.
    """

    weight: Sequence[float] | None = None
    ignore_index: int | None = None
    axis: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ignore_index(self.ignore_index, "NLL")

    def expects(self) -> Scale:
        return Scale.LOG_PROBABILITIES

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        shape = list(shape_of(outputs[0], self))
        del shape[class_axis(outputs[0], self.axis, self)]
        return [LabelSpec(ir.DataType.INT64, tuple(shape))]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        axis = class_axis(outputs[0], self.axis, self)
        weight = class_weight(op, self.weight, outputs[0], axis, self)
        return op.NegativeLogLikelihoodLoss(
            classes_second(op, outputs[0], axis),
            labels[0],
            weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
