"""The loss of single-shot detectors."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onward.arguments import check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, element_type, shape_of, smallest
from onward.losses.box_iou import corners
from onward.losses.detection import DetectionLoss, Truth, holds, numbers, pick
from onward.losses.smooth_l1 import SmoothL1

BOXES = ("offsets", "xyxy", "cxcywh")
_LEAST = 1e-6  # of a width, so that its logarithm is finite


@dataclasses.dataclass(frozen=True)
class SSD(DetectionLoss):
    """The MultiBox loss of Liu et al. 2016: (Σ smooth L1 of offsets + cross entropy of classes) / matched anchors.

    Reads two outputs: places [N, A, 4] and scores [N, A, classes + 1], where class 0 of the scores is the background;
    and the classes (from 0, without the background; -1 is padding) and boxes (x₁ y₁ x₂ y₂, in the units of the
    anchors) of each image.

    An anchor is matched with the object of the highest IoU, if that is at least `threshold`; and each object with its
    best anchor in any case (of objects with the same best anchor, the last one gets it). Of the other anchors, those
    with the highest loss count as background: `negatives` times as many as there are matched ones in the image.

    Args:
        anchors: [A, 4] as centre x, centre y, width, height: an array, or the path of an .npy file. `grid_anchors`
            makes them for plain grids.
        threshold: the least IoU of a match.
        negatives: background anchors for each matched one.
        boxes: what the places are: "offsets" from the anchors, or decoded boxes ("xyxy", "cxcywh").
        variances: the divisors of the offsets of centre and size.
        logits: False if the scores are probabilities (behind a Softmax).
        box_weight: the weight of the first term.
    """

    anchors: Any = dataclasses.field(repr=False)
    threshold: float = 0.5
    negatives: float = 3.0
    boxes: str = "offsets"
    variances: tuple[float, float] = (0.1, 0.2)
    logits: bool = True
    box_weight: float = 1.0
    num_outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, "SSD", low=0.0, high=1.0)
        check_number("negatives", self.negatives, "SSD", low=0.0)
        check_number("box_weight", self.box_weight, "SSD", low=0.0)
        check_name("kind of boxes", self.boxes, BOXES, place="loss `SSD`")
        if not isinstance(self.variances, Sequence) or len(self.variances) != 2:
            raise ArgumentError(
                Diagnostic(A101, "`variances` of `SSD` are not two numbers", found=repr(self.variances))
            )
        for number in self.variances:
            check_number("variances", number, "SSD", above=0.0)
        if np.any(self._anchors[:, 2:] <= 0):
            raise ArgumentError(
                Diagnostic(A101, "`anchors` of `SSD` have no area", needed="centre x, centre y, width > 0, height > 0")
            )

    @functools.cached_property
    def _anchors(self) -> np.ndarray:
        return numbers(self.anchors, "anchors", "SSD", 4)

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        problems = []
        for output, width, what in ((outputs[0], 4, "places"), (outputs[1], None, "scores")):
            shape = shape_of(output, self)
            count = shape[1] if len(shape) == 3 else None
            wrong = len(shape) != 3 or (isinstance(count, int) and count != len(self._anchors))
            if wrong or (width is not None and isinstance(shape[2], int) and shape[2] != width):
                problems.append(
                    Diagnostic(
                        A101,
                        f"output `{output.name}` does not hold the {what} of {len(self._anchors)} anchors",
                        place="loss `SSD`",
                        found=f"shape {list(shape)}",
                        needed=f"[N, {len(self._anchors)}, {width or 'classes + 1'}]",
                        hint="output= names the places first, then the scores",
                    )
                )
        if problems:
            raise ArgumentError(problems)
        return super().labels(outputs)

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        places, scores = outputs
        dtype = element_type(places, self)
        anchors = op.constant(self._anchors[None], dtype)
        truth = Truth.of(op, labels)
        match, positive = self._match(op, truth, anchors)
        target = self._offsets(op, pick(op, truth.boxes, match), anchors, "xyxy")
        found = places if self.boxes == "offsets" else self._offsets(op, places, anchors, self.boxes)
        distance = op.ReduceSum(SmoothL1().elements(op, found, target), [2], keepdims=0)
        distance = op.Where(positive, distance, 0.0)

        classes = op.Add(op.GatherElements(truth.classes, match, axis=1), 1)
        classes = op.Where(positive, classes, 0)
        entropy = self._entropy(op, scores, classes)
        counted = op.Or(positive, self._hardest(op, entropy, positive))
        total = op.Add(
            op.Mul(op.ReduceSum(distance, keepdims=0), self.box_weight),
            op.ReduceSum(op.Where(counted, entropy, 0.0), keepdims=0),
        )
        return op.Div(total, op.Max(op.ReduceSum(op.Cast(positive, to=dtype), keepdims=0), 1.0))

    def _match(self, op: Builder, truth: Truth, anchors: Value) -> tuple[Value, Value]:
        """Return the object of each anchor, int64 [N, A], and whether it is matched, bool [N, A]."""
        iou = truth.overlap(op, corners(op, anchors, "cxcywh"))
        best = op.ArgMax(iou, axis=2, keepdims=0)
        enough = op.GreaterOrEqual(op.ReduceMax(iou, [2], keepdims=0), self.threshold)
        real = op.Greater(op.ReduceMax(iou, [2], keepdims=0), 0.0)
        place = op.Range(0, op.Squeeze(op.Shape(iou, start=1, end=2)), 1)
        forced = op.Equal(op.ArgMax(iou, axis=1, keepdims=1), op.Unsqueeze(place, [1]))  # [N, A, M]
        forced = op.And(forced, op.Unsqueeze(truth.exists, [1]))
        own = op.ArgMax(op.Cast(forced, to=ir.DataType.INT32), axis=2, keepdims=0, select_last_index=1)
        is_forced = holds(op, forced, 2)
        return op.Where(is_forced, own, best), op.Or(is_forced, op.And(enough, real))

    def _offsets(self, op: Builder, boxes: Value, anchors: Value, form: str) -> Value:
        """Return boxes as offsets from the anchors: (centre - centre') / size' / v₁ and log(size / size') / v₂."""
        x1, y1, x2, y2 = corners(op, boxes, form)
        centre = op.Concat(op.Mul(op.Add(x1, x2), 0.5), op.Mul(op.Add(y1, y2), 0.5), axis=2)
        size = op.Concat(op.Sub(x2, x1), op.Sub(y2, y1), axis=2)
        own, extent = op.multi("Split", anchors, [2, 2], axis=2, outputs=2)
        moved = op.Div(op.Sub(centre, own), op.Mul(extent, self.variances[0]))
        grown = op.Log(op.Max(op.Div(size, extent), _LEAST))
        return op.Concat(moved, op.Mul(grown, 1.0 / self.variances[1]), axis=2)

    def _entropy(self, op: Builder, scores: Value, classes: Value) -> Value:
        """Return the cross entropy of each anchor, [N, A]."""
        if self.logits:
            logarithms = op.LogSoftmax(scores, axis=2)
        else:
            logarithms = op.Log(op.Max(scores, smallest(scores.dtype)))
        return op.Neg(op.Squeeze(op.GatherElements(logarithms, op.Unsqueeze(classes, [2]), axis=2), [2]))

    def _hardest(self, op: Builder, entropy: Value, positive: Value) -> Value:
        """Return which unmatched anchors count as background."""
        count = op.ReduceSum(op.Cast(positive, to=ir.DataType.INT64), [1], keepdims=1)
        wanted = op.Cast(op.Mul(op.Cast(count, to=ir.DataType.FLOAT), self.negatives), to=ir.DataType.INT64)
        cost = op.Where(positive, -1.0, entropy)
        anchors = op.Shape(entropy, start=1, end=2)
        _, order = op.multi("TopK", cost, anchors, axis=1, outputs=2)
        place = op.Expand(op.Unsqueeze(op.Range(0, op.Squeeze(anchors), 1), [0]), op.Shape(order))
        rank = op.ScatterElements(order, order, place, axis=1)
        return op.And(op.Less(rank, wanted), op.Not(positive))
