"""Losses of boxes: 1 - IoU, and its generalised, distance and complete forms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from onward.arguments import check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, ReducedLoss, element_type, mean_of, shape_of, without_gradient

FORMATS = ("xyxy", "cxcywh", "xywh")
KINDS = ("iou", "giou", "diou", "ciou")


@dataclasses.dataclass(frozen=True)
class IoU(ReducedLoss):
    """1 - intersection / union of each output box with its label box, [..., 4].

    Args:
        format: "xyxy" (two corners), "cxcywh" (centre and size) or "xywh" (corner and size).
        epsilon: added to each denominator, so that boxes of no area have a finite loss.
        skip_empty: label boxes without an area (padding) do not count, neither in the sum nor in the mean.
    """

    format: str = "xyxy"
    epsilon: float = 1e-7
    skip_empty: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check_name("format of boxes", self.format, FORMATS, place=f"loss `{owner}`")
        check_number("epsilon", self.epsilon, owner, above=0.0)

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        shape = shape_of(outputs[0], self)
        if len(shape) < 2 or (isinstance(shape[-1], int) and shape[-1] != 4):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"output `{outputs[0].name}` does not hold boxes",
                    place=f"loss `{type(self).__name__}`",
                    found=f"shape {list(shape)}",
                    needed="a last axis of 4 numbers",
                )
            )
        return [LabelSpec(element_type(outputs[0], self), shape)]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        boxes, target = (corners(op, v, self.format) for v in (outputs[0], labels[0]))
        likeness = similarity(op, boxes, target, type(self).__name__.lower(), self.epsilon)
        elements = op.Squeeze(op.Sub(1.0, likeness), [-1])
        if not self.skip_empty:
            return self.reduce(op, elements)
        counted = op.Greater(op.Squeeze(area(op, target), [-1]), 0.0)
        if self.reduction == "mean":
            return mean_of(op, elements, counted)
        return self.reduce(op, op.Where(counted, elements, 0.0))


@dataclasses.dataclass(frozen=True)
class GIoU(IoU):
    """1 - IoU + (hull - union) / hull, with the smallest box that holds both: Rezatofighi et al. 2019.

    It has a slope where the boxes do not touch. Arguments as for `IoU`.
    """


@dataclasses.dataclass(frozen=True)
class DIoU(IoU):
    """1 - IoU + d² / c²: d is the distance of the centres, c the diagonal of the hull (Zheng et al. 2020).

    Arguments as for `IoU`.
    """


@dataclasses.dataclass(frozen=True)
class CIoU(IoU):
    """DIoU + α·v with v = 4/π² · (atan(w'/h') - atan(w/h))², α = v / (1 - IoU + v): Zheng et al. 2020.

    α counts as a constant in the gradient, as the authors wrote it. Arguments as for `IoU`.
    """


Corners = tuple[Value, Value, Value, Value]


def corners(op: Builder, boxes: Value, form: str) -> Corners:
    """Return x₁, y₁, x₂, y₂ of boxes [..., 4], each [..., 1]."""
    a, b, c, d = op.multi("Split", boxes, [1, 1, 1, 1], axis=-1, outputs=4)
    if form == "xyxy":
        return a, b, c, d
    if form == "xywh":
        return a, b, op.Add(a, c), op.Add(b, d)
    halves = op.Mul(c, 0.5), op.Mul(d, 0.5)
    return op.Sub(a, halves[0]), op.Sub(b, halves[1]), op.Add(a, halves[0]), op.Add(b, halves[1])


def area(op: Builder, box: Corners) -> Value:
    """Return width · height."""
    return op.Mul(op.Sub(box[2], box[0]), op.Sub(box[3], box[1]))


def similarity(op: Builder, a: Corners, b: Corners, kind: str, epsilon: float) -> Value:
    """Return the IoU of boxes, or its generalised form, all broadcast; `b` are the labels."""
    width = op.Relu(op.Sub(op.Min(a[2], b[2]), op.Max(a[0], b[0])))
    height = op.Relu(op.Sub(op.Min(a[3], b[3]), op.Max(a[1], b[1])))
    both = op.Mul(width, height)
    union = op.Sub(op.Add(area(op, a), area(op, b)), both)
    iou = op.Div(both, op.Add(union, epsilon))
    if kind == "iou":
        return iou
    across = op.Sub(op.Max(a[2], b[2]), op.Min(a[0], b[0]))
    down = op.Sub(op.Max(a[3], b[3]), op.Min(a[1], b[1]))
    if kind == "giou":
        hull = op.Mul(across, down)
        return op.Sub(iou, op.Div(op.Sub(hull, union), op.Add(hull, epsilon)))
    diagonal = op.Add(op.Add(op.Mul(across, across), op.Mul(down, down)), epsilon)
    x, y = (op.Mul(op.Sub(op.Add(a[i], a[i + 2]), op.Add(b[i], b[i + 2])), 0.5) for i in (0, 1))
    result = op.Sub(iou, op.Div(op.Add(op.Mul(x, x), op.Mul(y, y)), diagonal))
    if kind == "diou":
        return result

    def angle(box: Corners) -> Value:
        return op.Atan(op.Div(op.Sub(box[2], box[0]), op.Add(op.Sub(box[3], box[1]), epsilon)))

    difference = op.Sub(angle(b), angle(a))
    v = op.Mul(op.Mul(difference, difference), 4 / math.pi**2)
    alpha = without_gradient(op, op.Div(v, op.Add(op.Sub(v, iou), 1.0 + epsilon)))
    return op.Sub(result, op.Mul(alpha, v))
