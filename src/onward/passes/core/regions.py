"""Regions of interest: RoiAlign, MaxRoiPool and NonMaxSuppression."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.emit import subgraph_input
from onward.autodiff.rules.roi import _lines, _members
from onward.graph.builder import Builder, Value
from onward.passes.core.registry import Lowering, decomposition

INT64 = ir.DataType.INT64


@decomposition("RoiAlign", kernel="whole rows of the image are read for each region, not the samples alone")
def roi_align(at: Lowering) -> Value:
    """MatMul with the interpolation matrices of both axes; with mode max, ReduceMax of the weighted neighbours."""
    op, X, batch = at.op, at.input("X"), at.input("batch_indices")
    vertical, horizontal = _lines(at, 1), _lines(at, 0)
    if at.attr("mode") != "max":
        images = op.Gather(X, batch, axis=0)
        V, H = (op.Unsqueeze(line.matrix(), [1]) for line in (vertical, horizontal))
        return op.MatMul(op.MatMul(V, images), op.Transpose(H, perm=[0, 1, 3, 2]))
    rows, row_weights, row_exists = vertical.neighbours()
    columns, column_weights, column_exists = horizontal.neighbours()
    high, wide = int(at.attr("output_height")), int(at.attr("output_width"))

    def pairs(of_rows: Value, of_columns: Value, combine: str) -> Value:
        both = op.call(combine, (op.Unsqueeze(of_rows, [3, 4]), op.Unsqueeze(of_columns, [1, 2])))[0]
        return op.Reshape(op.Transpose(both, perm=[0, 1, 3, 2, 4]), [0, 1, high * wide, -1])

    channels = op.Concat(at.dim_of(X, 1), np.array([1, 1], np.int64), axis=0)
    index = op.Expand(pairs(op.Mul(rows, at.dim_of(X, 3)), columns, "Add"), channels)
    weight, exists = pairs(row_weights, column_weights, "Mul"), pairs(row_exists, column_exists, "And")
    images = op.Reshape(op.Gather(X, batch, axis=0), [0, 0, -1])
    flat_index = op.Reshape(index, [0, 0, -1])
    images.shape = flat_index.shape = ir.Shape([None, None, None])
    values = op.Reshape(op.GatherElements(images, flat_index, axis=2), op.Shape(index))
    most = op.ReduceMax(op.Where(exists, op.Mul(values, weight), -np.inf), [3], keepdims=0)
    found = op.Where(op.Equal(most, -np.inf), 0.0, most)
    return op.Reshape(found, [0, 0, high, wide])


@decomposition("MaxRoiPool", kernel="whole rows of the image are compared for each region")
def max_roi_pool(at: Lowering) -> Value:
    """ReduceMax of the pixels in each bin, along x, then along y; 0 for an empty bin."""
    op, X, rois = at.op, at.input("X"), at.input("rois")
    height, width = at.attr("pooled_shape")
    batch = op.Cast(op.Squeeze(op.Slice(rois, [0], [1], [1]), [1]), to=INT64)
    images = op.Gather(X, batch, axis=0)
    in_row, in_column = _members(at, 1, width, 3), _members(at, 2, height, 2)
    along_x = op.Where(op.Unsqueeze(in_row, [1, 2]), op.Unsqueeze(images, [3]), -np.inf)
    largest = op.Transpose(op.ReduceMax(along_x, [4], keepdims=0), perm=[0, 1, 3, 2])
    along_y = op.Where(op.Unsqueeze(in_column, [1, 3]), op.Unsqueeze(largest, [2]), -np.inf)
    found = op.ReduceMax(along_y, [4], keepdims=0)
    return op.Where(op.Equal(found, -np.inf), 0.0, found)


@decomposition("NonMaxSuppression", kernel="a Loop that compares one box with all others in each step")
def non_max_suppression(at: Lowering) -> Value:
    """A Loop: take the best box that is left, of each batch and class, and drop those that overlap it."""
    op, boxes, scores = at.op, at.input("boxes"), at.input("scores")
    most, iou, least = (
        at.optional_input(n) for n in ("max_output_boxes_per_class", "iou_threshold", "score_threshold")
    )
    batch, classes, count = (at.size(scores, i) for i in range(3))
    none = op.constant([], INT64)
    limit = op.constant(0) if most is None else op.Reshape(most, none)
    steps = op.Min(limit, at.scalar(count))
    overlap = op.constant(0.0) if iou is None else op.Reshape(iou, none)
    y1, x1, y2, x2 = _corners(at, boxes)
    area = op.Mul(op.Sub(y2, y1), op.Sub(x2, x1))  # each [batch, 1, boxes]
    left = scores if least is None else op.Where(op.Less(op.Reshape(least, none), scores), scores, -np.inf)
    place = at.count(count)
    inner = op.inner(f"{op.prefix}step/")
    step = subgraph_input(inner, "step", ir.TensorType(INT64), ir.Shape([]))
    go = subgraph_input(inner, "go", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
    rest = subgraph_input(inner, "left", scores.type, ir.Shape([None, None, None]))
    best = inner.ArgMax(rest, axis=2, keepdims=1)
    chosen = inner.Equal(place, best)
    score = inner.ReduceMax(rest, [2], keepdims=1)
    taken = inner.Less(op.constant(-np.inf, ir.DataType.FLOAT), score)

    def of_best(value: Value) -> Value:
        return inner.ReduceSum(inner.Where(chosen, value, 0.0), [2], keepdims=1)

    high = _extent(inner, of_best(y1), of_best(y2), y1, y2)
    wide = _extent(inner, of_best(x1), of_best(x2), x1, x2)
    shared = inner.Mul(high, wide)
    union = inner.Sub(inner.Add(area, of_best(area)), shared)
    ratio = inner.Where(inner.Equal(shared, 0.0), 0.0, inner.Div(shared, union))
    gone = inner.Or(chosen, inner.Less(overlap, ratio))
    after = inner.Where(gone, -np.inf, rest)
    on = inner.Identity(go)
    index = inner.Where(taken, best, -1)
    body = ir.Graph([step, go, rest], [on, after, index], nodes=inner.nodes, name=f"{op.prefix}step")
    _, picked = op.call("Loop", [steps, op.constant(True), left], outputs=2, body=body)
    picked.type = ir.TensorType(INT64)
    # [steps, batch, classes, 1] to rows of (batch, class, box), in the order of batch, class, step.
    table = op.Transpose(op.Reshape(picked, at.vector([-1, batch, classes])), perm=[1, 2, 0])
    places = op.NonZero(op.Less(-1, table))
    flat = op.Reshape(table, [-1])
    box = op.Gather(flat, op.Reshape(op.NonZero(op.Less(-1, flat)), [-1]), axis=0)
    lead = op.Slice(places, [0], [2], [0])
    return op.Transpose(op.Concat(lead, op.Reshape(box, [1, -1]), axis=0), perm=[1, 0])


def _corners(at: Lowering, boxes: Value) -> tuple[Value, Value, Value, Value]:
    """Return y1, x1, y2, x2 as [batch, 1, boxes], the smaller ones first."""
    op = at.op
    a, b, c, d = (op.Unsqueeze(op.Gather(boxes, i, axis=2), [1]) for i in range(4))
    if at.attr("center_point_box"):  # x, y, width, height
        half_w, half_h = op.Mul(c, 0.5), op.Mul(d, 0.5)
        return op.Sub(b, half_h), op.Sub(a, half_w), op.Add(b, half_h), op.Add(a, half_w)
    return op.Min(a, c), op.Min(b, d), op.Max(a, c), op.Max(b, d)


def _extent(op: Builder, start: Value, end: Value, starts: Value, ends: Value) -> Value:
    """Return how far two intervals overlap."""
    return op.Max(op.Sub(op.Min(end, ends), op.Max(start, starts)), 0.0)
