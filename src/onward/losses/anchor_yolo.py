"""The loss of YOLO detectors with anchors: YOLOv2 to YOLOv4."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.arguments import check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import element_type
from onward.losses.box_iou import corners, similarity
from onward.losses.detection import EPSILON, Truth, holds, numbers, pick
from onward.losses.yolo import LARGEST_EXPONENT, GridLoss


@dataclasses.dataclass(frozen=True)
class AnchorYOLO(GridLoss):
    """The loss of a YOLO detector with anchors; the labels are classes and boxes in pixels (see `pad_boxes`).

    Each cell predicts x, y, w, h, objectness and classes for each anchor; the box is (σ(x) + column)·stride,
    (σ(y) + row)·stride, e^w·width, e^h·height of the anchor (Redmon and Farhadi 2018).

    An object is assigned to the anchor whose shape has the highest IoU with it, of all grids, in the cell that holds
    its centre. The loss is box_weight·(1 - CIoU) + classes over the objects, and objectness over all predictions, all
    divided by the number of objects. A prediction that is not assigned, but has an IoU above `ignore` with an object,
    has no objectness term.

    Args:
        anchors: for each grid, the (width, height) of its anchors in pixels.
        ignore: see above.
        decoded: x, y, w, h are pixels already.
        objectness_weight: the weight of the objectness' term.
        GridLoss: `size`, `strides`, `axis`, `logits`, `box`, `box_weight` and `class_weight`.
    """

    anchors: Any = None
    ignore: float = 0.5
    decoded: bool = False
    objectness_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("ignore", self.ignore, "AnchorYOLO", low=0.0, high=1.0)
        check_number("objectness_weight", self.objectness_weight, "AnchorYOLO", low=0.0)
        if not isinstance(self.anchors, Sequence | np.ndarray) or len(self.anchors) != len(self.strides):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "`anchors` of `AnchorYOLO` do not fit the grids",
                    found="none" if self.anchors is None else repr(self.anchors)[:200],
                    needed=f"{len(self.strides)} lists of (width, height), one for each of the strides",
                )
            )
        if any(np.any(a <= 0) for a in self._shapes):
            raise ArgumentError(
                Diagnostic(A101, "an anchor of `AnchorYOLO` has no area", found=repr(self.anchors)[:200])
            )

    @functools.cached_property
    def _shapes(self) -> list[np.ndarray]:
        return [numbers(a, "anchors", "AnchorYOLO", 2) for a in self.anchors]

    @property
    def _per_cell(self) -> list[int]:
        return [len(a) for a in self._shapes]

    @property
    def _fixed(self) -> int:
        return 5

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        dtype = element_type(outputs[0], self)
        predictions = self._predictions(op, outputs)
        classes = self._channels(outputs) - 5
        place, objectness, scores = op.multi("Split", predictions, [4, 1, classes], axis=2, outputs=3)
        boxes = self._decode(op, place, dtype)
        truth = Truth.of(op, labels)
        index = self._assign(op, truth, dtype)  # [N, M]
        count = op.Max(op.ReduceSum(op.Cast(truth.exists, to=dtype), keepdims=0), 1.0)

        own = corners(op, pick(op, boxes, index), "cxcywh")
        box = op.Squeeze(op.Sub(1.0, similarity(op, own, corners(op, truth.boxes, "xyxy"), self.box, EPSILON)), [2])
        kind = self._entropy(op, pick(op, scores, index), self._one_hot(op, truth.classes, outputs))
        kind = op.ReduceSum(kind, [2], keepdims=0)

        everyone = op.constant(np.arange(self._count).reshape(1, -1, 1))
        assigned = op.And(op.Equal(everyone, op.Unsqueeze(index, [1])), op.Unsqueeze(truth.exists, [1]))
        assigned = holds(op, assigned, 2)  # [N, P]
        close = op.ReduceMax(truth.overlap(op, corners(op, boxes, "cxcywh")), [2], keepdims=0)
        counted = op.Or(assigned, op.LessOrEqual(close, self.ignore))
        there = self._entropy(op, op.Squeeze(objectness, [2]), op.Cast(assigned, to=dtype))

        def total(value: Value, counts: Value) -> Value:
            return op.ReduceSum(op.Where(counts, value, 0.0), keepdims=0)

        terms = (
            op.Mul(total(box, truth.exists), self.box_weight),
            op.Mul(total(there, counted), self.objectness_weight),
            op.Mul(total(kind, truth.exists), self.class_weight),
        )
        return op.Div(op.Sum(*terms), count)

    def _decode(self, op: Builder, place: Value, dtype: ir.DataType) -> Value:
        if self.decoded:
            return place
        cell, stride, number = self._grid()
        sizes = [h * w * n for (h, w), n in zip(self._cells(), self._per_cell, strict=True)]
        grid = np.repeat(np.arange(len(sizes)), sizes)
        shapes = np.array([self._shapes[g][n] for g, n in zip(grid, number, strict=True)])
        centre, extent = op.multi("Split", place, [2, 2], axis=2, outputs=2)
        centre = op.Mul(op.Add(op.Sigmoid(centre), op.constant(cell[None], dtype)), op.constant(stride[None], dtype))
        extent = op.Mul(op.Exp(op.Min(extent, LARGEST_EXPONENT)), op.constant(shapes[None], dtype))
        return op.Concat(centre, extent, axis=2)

    def _assign(self, op: Builder, truth: Truth, dtype: ir.DataType) -> Value:
        """Return the number of the prediction that each object is assigned to, int64 [N, M]."""
        x1, y1, x2, y2 = corners(op, truth.boxes, "xyxy")
        width, height = op.Sub(x2, x1), op.Sub(y2, y1)  # [N, M, 1]
        shapes = np.concatenate(self._shapes)
        both = op.Mul(
            op.Min(width, op.constant(shapes[None, None, :, 0], dtype)),
            op.Min(height, op.constant(shapes[None, None, :, 1], dtype)),
        )
        areas = op.Add(op.Mul(width, height), op.constant(shapes.prod(1)[None, None], dtype))
        best = op.ArgMax(op.Div(both, op.Add(op.Sub(areas, both), EPSILON)), axis=2, keepdims=0)  # [N, M]

        table, first = [], 0
        for (h, w), own, step in zip(self._cells(), self._per_cell, self.strides, strict=True):
            for number in range(own):
                table.append((h, w, step, first + number * h * w))
            first += own * h * w
        rows, columns, strides, firsts = zip(*table, strict=True)

        def of_best(values: Sequence[int]) -> Value:
            return op.Gather(op.constant(np.array(values, np.int64)), best, axis=0)

        stride = op.Cast(of_best(strides), to=dtype)

        def cell(low: Value, high: Value, count: Value) -> Value:
            middle = op.Div(op.Squeeze(op.Mul(op.Add(low, high), 0.5), [2]), stride)
            return op.Max(op.Min(op.Cast(op.Floor(middle), to=ir.DataType.INT64), op.Sub(count, 1)), 0)

        column, row = cell(x1, x2, of_best(columns)), cell(y1, y2, of_best(rows))
        return op.Add(op.Add(of_best(firsts), op.Mul(row, of_best(columns))), column)
