"""Losses of YOLO detectors without anchors: YOLOX (objectness, SimOTA) and YOLOv8 (task-aligned assignment)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onward.arguments import check_count, check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import ANY_NUMBER, LabelSpec, element_type, one_hot, shape_of, smallest, without_gradient
from onward.losses.bce import BCE
from onward.losses.bce_with_logits import softplus_of_negative
from onward.losses.box_iou import KINDS, Corners, corners, similarity
from onward.losses.detection import EPSILON, DetectionLoss, Truth, holds, image_size, pick

LARGEST_EXPONENT = math.log(1000.0)  # of a size: a box is at most a thousand cells, and never infinite
_NEVER = 1e8  # the cost of a cell that is no candidate


@dataclasses.dataclass(frozen=True)
class GridLoss(DetectionLoss):
    """A loss of predictions on grids: one output with all of them, or one output [N, channels, height, width] per grid.

    Args:
        size: height and width of the image in pixels, or one number for both.
        strides: the size of a cell of each grid; predictions are in the order of grid, (anchor,) row, column.
        axis: the axis of the channels of a single output: -1 for [N, P, channels], 1 for [N, channels, P].
        logits: False if objectness and classes are probabilities: files often end in a Sigmoid.
        box: the loss of boxes: "iou", "giou", "diou" or "ciou".
        box_weight: the weight of the boxes' term.
        class_weight: the weight of the classes' term.
    """

    size: Any
    strides: Sequence[int] = (8, 16, 32)
    axis: int = -1
    logits: bool = True
    box: str = "ciou"
    box_weight: float = 5.0
    class_weight: float = 1.0
    num_outputs: ClassVar[int] = ANY_NUMBER

    def __post_init__(self) -> None:
        owner = type(self).__name__
        image_size(self.size, owner)
        strides = self.strides if isinstance(self.strides, Sequence) and self.strides else (None,)
        for stride in strides:
            check_count("strides", stride, owner)
        check_name("loss of boxes", self.box, KINDS, place=f"loss `{owner}`")
        check_number("box_weight", self.box_weight, owner, low=0.0)
        check_number("class_weight", self.class_weight, owner, low=0.0)
        if self.axis not in (1, -1, 2):
            raise ArgumentError(
                Diagnostic(A101, f"`axis` of `{owner}` is out of range", found=repr(self.axis), needed="1 or -1")
            )

    @property
    def _per_cell(self) -> list[int]:
        """The number of predictions in a cell of each grid."""
        return [1] * len(self.strides)

    @property
    def _fixed(self) -> int:
        """The number of channels before the classes."""
        raise NotImplementedError

    def _cells(self) -> list[tuple[int, int]]:
        height, width = image_size(self.size, type(self).__name__)
        return [(-(-height // s), -(-width // s)) for s in self.strides]

    @property
    def _count(self) -> int:
        return sum(h * w * n for (h, w), n in zip(self._cells(), self._per_cell, strict=True))

    def _grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return column and row of each prediction's cell, [P, 2], its stride, [P, 1], and its number in the cell."""
        places, strides, numbers = [], [], []
        for (height, width), count, stride in zip(self._cells(), self._per_cell, self.strides, strict=True):
            number, y, x = np.mgrid[:count, :height, :width]
            places.append(np.stack([x, y], -1).reshape(-1, 2))
            numbers.append(number.reshape(-1))
            strides.append(np.full((number.size, 1), stride))
        return np.concatenate(places).astype(np.float64), np.concatenate(strides), np.concatenate(numbers)

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        owner, problems = type(self).__name__, []
        shapes = [shape_of(v, self) for v in outputs]
        if len(outputs) == 1 and len(shapes[0]) == 3:
            axis = self.axis % 3
            count = shapes[0][3 - axis]
            if isinstance(count, int) and count != self._count:
                problems.append((outputs[0], f"{self._count} predictions on axis {3 - axis}"))
            expected: list[int | None] = [None]
        else:
            expected = list(range(len(self.strides)))
            if len(outputs) != len(self.strides):
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        f"`{owner}` reads one output with all predictions, or one for each of the strides",
                        place="output=",
                        found=f"{len(outputs)} outputs, strides {list(self.strides)}",
                    )
                )
            for output, shape, (height, width) in zip(outputs, shapes, self._cells(), strict=True):
                wrong = len(shape) != 4 or any(
                    isinstance(d, int) and d != n for d, n in zip(shape[2:], (height, width), strict=True)
                )
                if wrong:
                    problems.append((output, f"[N, channels, {height}, {width}]"))
        if not problems:
            for output, shape, which in zip(outputs, shapes, expected, strict=True):
                own = 1 if which is None else self._per_cell[which]
                channels = shape[self.axis % 3 if which is None else 1]
                if not isinstance(channels, int) or channels % own or channels // own <= self._fixed:
                    problems.append((output, f"{own} x ({self._fixed} + classes) channels, a number that is known"))
        if problems:
            raise ArgumentError(
                [
                    Diagnostic(
                        A101,
                        f"output `{output.name}` does not hold the predictions of an image of {self.size}",
                        place=f"loss `{owner}`",
                        found=f"shape {list(shape_of(output, self))}",
                        needed=needed,
                        hint="check size=, strides= and axis=",
                    )
                    for output, needed in problems
                ]
            )
        return super().labels(outputs)

    def _predictions(self, op: Builder, outputs: Sequence[Value]) -> Value:
        """Return all predictions as [N, P, channels]."""
        if len(outputs) == 1 and len(shape_of(outputs[0], self)) == 3:
            return op.Transpose(outputs[0], perm=[0, 2, 1]) if self.axis == 1 else outputs[0]
        parts = []
        for output, (height, width), count in zip(outputs, self._cells(), self._per_cell, strict=True):
            channels = shape_of(output, self)[1]
            assert isinstance(channels, int)
            split = op.Reshape(output, [0, count, channels // count, height, width])
            moved = op.Transpose(split, perm=[0, 1, 3, 4, 2])
            parts.append(op.Reshape(moved, [0, count * height * width, channels // count]))
        return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]

    def _channels(self, outputs: Sequence[Value]) -> int:
        shape = shape_of(outputs[0], self)
        channels = shape[1] if len(shape) == 4 else shape[self.axis % 3]
        assert isinstance(channels, int)
        return channels // self._per_cell[0] if len(shape) == 4 else channels

    def _entropy(self, op: Builder, scores: Value, target: Value) -> Value:
        """Return the binary cross entropy of each score."""
        if not self.logits:
            return BCE().elements(op, scores, target)
        return op.Add(op.Mul(op.Sub(1.0, target), scores), softplus_of_negative(op, scores))

    def _probability(self, op: Builder, scores: Value) -> Value:
        return op.Sigmoid(scores) if self.logits else scores

    def _one_hot(self, op: Builder, classes: Value, outputs: Sequence[Value]) -> Value:
        count = self._channels(outputs) - self._fixed
        return one_hot(op, classes, count, -1, element_type(outputs[0], self))


@dataclasses.dataclass(frozen=True)
class YOLO(GridLoss):
    """The loss of a YOLO detector without anchors; the labels are classes and boxes in pixels (see `pad_boxes`).

    Each prediction has the channels x, y, w, h, objectness (if it has one) and the classes.

    With objectness (YOLOX, Ge et al. 2021), SimOTA assigns: the candidates of an object are the cells whose centre is
    at most 1.5 cells from the object's centre in x and y; the cost is the classes' cross entropy of √(class ·
    objectness) - 3·log IoU; the object gets as many cells of the lowest cost as the IoUs of its 10 best candidates add
    up to, at least one; a cell that several objects want goes to the lowest cost. The loss is box_weight·(1 - IoU) +
    objectness + classes, where the target of the class is the IoU; all divided by the number of assigned cells.

    Without objectness (YOLOv8; TOOD, Feng et al. 2021), the candidates are the cells whose centre is in the box; the
    object gets the 10 of the highest class^0.5 · IoU^6; a cell that several objects want goes to the highest IoU. The
    target of the class is that product, scaled so that the best cell of an object has its highest IoU;
    boxes are weighted with it, and all is divided by the sum of the targets. There is no distribution focal loss:
    exported files hold boxes, not distributions.

    Neither assignment is differentiated.

    Args:
        objectness: the predictions have an objectness.
        decoded: x, y, w, h are pixels; False: (x + column)·stride, (y + row)·stride, e^w·stride, e^h·stride, as YOLOX.
        topk: the number of candidates that count, 10 in both.
        objectness_weight: the weight of the objectness' term.
        GridLoss: `size`, `strides`, `axis`, `logits`, `box`, `box_weight` and `class_weight`.
    """

    objectness: bool = True
    decoded: bool = False
    topk: int = 10
    objectness_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("topk", self.topk, "YOLO")
        check_number("objectness_weight", self.objectness_weight, "YOLO", low=0.0)

    @property
    def _fixed(self) -> int:
        return 5 if self.objectness else 4

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        dtype = element_type(outputs[0], self)
        predictions = self._predictions(op, outputs)
        classes = self._channels(outputs) - self._fixed
        sizes = [4, 1, classes] if self.objectness else [4, classes]
        place, *objectness, scores = op.multi("Split", predictions, sizes, axis=2, outputs=len(sizes))
        boxes = corners(op, self._decode(op, place, dtype), "cxcywh")
        truth = Truth.of(op, labels)
        overlap = truth.overlap(op, boxes)  # [N, P, M]
        if self.objectness:
            return self._simota(op, outputs, boxes, objectness[0], scores, truth, overlap)
        return self._task_aligned(op, outputs, boxes, scores, truth, overlap)

    def _decode(self, op: Builder, place: Value, dtype: ir.DataType) -> Value:
        if self.decoded:
            return place
        cell, stride, _ = self._grid()
        centre, extent = op.multi("Split", place, [2, 2], axis=2, outputs=2)
        centre = op.Add(centre, op.constant(cell[None], dtype))
        extent = op.Exp(op.Min(extent, LARGEST_EXPONENT))
        return op.Mul(op.Concat(centre, extent, axis=2), op.constant(stride[None], dtype))

    def _centres(self, op: Builder, dtype: ir.DataType) -> tuple[Value, Value]:
        cell, stride, _ = self._grid()
        centre = (cell + 0.5) * stride
        return op.constant(centre[None, :, :1], dtype), op.constant(centre[None, :, 1:], dtype)

    def _own_scores(self, op: Builder, values: Value, truth: Truth) -> Value:
        """Return the score of each prediction for the class of each object: [N, P, M]."""
        count = op.constant(np.array([1, self._count, 1]))
        return op.GatherElements(values, op.Expand(op.Unsqueeze(truth.classes, [1]), count), axis=2)

    def _simota(
        self, op: Builder, outputs: Sequence[Value], boxes: Corners, objectness: Value, scores: Value, truth: Truth,
        overlap: Value,
    ) -> Value:  # fmt: skip
        dtype = element_type(outputs[0], self)
        tiny = smallest(dtype)
        x1, y1, x2, y2 = truth.corners(op)
        _, stride, _ = self._grid()
        reach = op.constant(1.5 * stride[None], dtype)
        near = [
            op.Less(op.Abs(op.Sub(own, op.Mul(op.Add(low, high), 0.5))), reach)
            for own, low, high in zip(self._centres(op, dtype), (x1, y1), (x2, y2), strict=True)
        ]
        candidate = op.And(op.And(near[0], near[1]), op.Unsqueeze(truth.exists, [1]))

        joint = op.Sqrt(op.Mul(self._probability(op, scores), self._probability(op, objectness)))
        yes, no = (_logarithm(op, p) for p in (joint, op.Sub(1.0, joint)))
        rest = op.ReduceSum(no, [2], keepdims=1)
        entropy = op.Neg(op.Add(rest, op.Sub(self._own_scores(op, yes, truth), self._own_scores(op, no, truth))))
        cost = op.Sub(entropy, op.Mul(op.Log(op.Max(overlap, tiny)), 3.0))
        cost = op.Where(candidate, cost, op.constant(1e4 if dtype == ir.DataType.FLOAT16 else _NEVER, dtype))

        most = min(self.topk, self._count)
        best, _ = op.multi("TopK", op.Where(candidate, overlap, 0.0), np.array([most]), axis=1, outputs=2)
        wanted = op.Max(op.Cast(op.ReduceSum(best, [1], keepdims=1), to=ir.DataType.INT64), 1)  # [N, 1, M]
        _, order = op.multi("TopK", cost, np.array([most]), axis=1, largest=0, outputs=2)  # [N, K, M]
        chosen = op.Less(op.constant(np.arange(most).reshape(1, -1, 1)), wanted)
        taken = op.And(_scattered(op, chosen, order, candidate), candidate)
        several = op.Greater(op.ReduceSum(op.Cast(taken, to=ir.DataType.INT32), [2], keepdims=1), 1)
        cheapest = op.ArgMin(cost, axis=2, keepdims=0)
        match = op.ArgMax(op.Cast(taken, to=ir.DataType.INT32), axis=2, keepdims=0)
        match = op.Where(op.Squeeze(several, [2]), cheapest, match)  # [N, P]
        positive = holds(op, taken, 2)

        count = op.Max(op.ReduceSum(op.Cast(positive, to=dtype), keepdims=0), 1.0)
        iou = without_gradient(op, op.Squeeze(op.GatherElements(overlap, op.Unsqueeze(match, [2]), axis=2), [2]))
        own = self._one_hot(op, op.GatherElements(truth.classes, match, axis=1), outputs)
        kind = op.ReduceSum(self._entropy(op, scores, op.Mul(own, op.Unsqueeze(iou, [2]))), [2], keepdims=0)
        there = self._entropy(op, op.Squeeze(objectness, [2]), op.Cast(positive, to=dtype))
        box = self._box(op, boxes, truth, match)

        def total(value: Value) -> Value:
            return op.ReduceSum(op.Where(positive, value, 0.0), keepdims=0)

        terms = (
            op.Mul(total(box), self.box_weight),
            op.Mul(op.ReduceSum(there, keepdims=0), self.objectness_weight),
            op.Mul(total(kind), self.class_weight),
        )
        return op.Div(op.Sum(*terms), count)

    def _task_aligned(
        self, op: Builder, outputs: Sequence[Value], boxes: Corners, scores: Value, truth: Truth, overlap: Value
    ) -> Value:
        dtype = element_type(outputs[0], self)
        x, y = self._centres(op, dtype)
        x1, y1, x2, y2 = truth.corners(op)
        inside = [op.Greater(op.Sub(a, b), 0.0) for a, b in ((x, x1), (y, y1), (x2, x), (y2, y))]
        candidate = op.And(op.And(inside[0], inside[1]), op.And(inside[2], inside[3]))
        candidate = op.And(candidate, op.Unsqueeze(truth.exists, [1]))
        own = self._own_scores(op, self._probability(op, scores), truth)
        square = op.Mul(overlap, overlap)
        metric = op.Mul(op.Sqrt(own), op.Mul(op.Mul(square, square), square))
        metric = op.Where(candidate, metric, 0.0)

        most = min(self.topk, self._count)
        _, order = op.multi("TopK", op.Where(candidate, metric, -1.0), np.array([most]), axis=1, outputs=2)
        taken = op.And(_scattered(op, op.constant(np.ones((1, 1, 1), bool)), order, candidate), candidate)
        several = op.Greater(op.ReduceSum(op.Cast(taken, to=ir.DataType.INT32), [2], keepdims=1), 1)
        best = op.ArgMax(op.Where(taken, overlap, -1.0), axis=2, keepdims=0)
        match = op.ArgMax(op.Cast(taken, to=ir.DataType.INT32), axis=2, keepdims=0)
        match = op.Where(op.Squeeze(several, [2]), best, match)
        positive = holds(op, taken, 2)
        mine = op.And(
            op.Equal(op.Unsqueeze(match, [2]), op.Range(0, op.Squeeze(op.Shape(overlap, start=2, end=3)), 1)),
            op.Unsqueeze(positive, [2]),
        )  # [N, P, M], at most one per prediction
        metric = op.Where(mine, metric, 0.0)
        highest = op.ReduceMax(metric, [1], keepdims=1)
        largest = op.ReduceMax(op.Where(mine, overlap, 0.0), [1], keepdims=1)
        scaled = op.Div(op.Mul(metric, largest), op.Add(highest, smallest(dtype)))
        weight = without_gradient(op, op.ReduceMax(scaled, [2], keepdims=0))  # [N, P]

        wanted = self._one_hot(op, op.GatherElements(truth.classes, match, axis=1), outputs)
        target = op.Mul(wanted, op.Unsqueeze(weight, [2]))
        box = op.Where(positive, self._box(op, boxes, truth, match), 0.0)
        kind = op.ReduceSum(self._entropy(op, scores, target), keepdims=0)
        terms = (
            op.Mul(op.ReduceSum(op.Mul(box, weight), keepdims=0), self.box_weight),
            op.Mul(kind, self.class_weight),
        )
        return op.Div(op.Sum(*terms), op.Max(op.ReduceSum(weight, keepdims=0), 1.0))

    def _box(self, op: Builder, boxes: Corners, truth: Truth, match: Value) -> Value:
        """Return the loss of each prediction's box against its object, [N, P]."""
        own = corners(op, pick(op, truth.boxes, match), "xyxy")
        return op.Squeeze(op.Sub(1.0, similarity(op, boxes, own, self.box, EPSILON)), [2])


def _scattered(op: Builder, chosen: Value, order: Value, like: Value) -> Value:
    """Return a condition of the shape of `like` [N, P, M]: `chosen` [.., K, M] at the places `order` [N, K, M]."""
    update = op.Expand(op.Cast(chosen, to=ir.DataType.INT32), op.Shape(order))
    nothing = op.Expand(op.constant(np.array([[[0]]], np.int32)), op.Shape(like))
    return op.Greater(op.ScatterElements(nothing, order, update, axis=1), 0)


def _logarithm(op: Builder, p: Value) -> Value:
    return op.Log(op.Max(p, smallest(p.dtype)))
