"""Pooling over regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, ZERO, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._scatter import scatter_rows
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("RoiAlign", opset=16, batch_indices=NON_DIFFERENTIABLE)
def roi_align(rule: Rule, dY: Value) -> Grads:
    """Y[r] = V_r X[b_r] H_r^T with the interpolation matrices of region r, so dX[b_r] adds V_r^T dY[r] H_r.

    Averages of bilinear samples along one axis do not depend on the other axis. A corner of the region moves every
    sample, so its gradient is the sum of theirs. With mode max, only the largest sample has a gradient.
    """
    vertical, horizontal = _lines(rule, 1), _lines(rule, 0)
    if rule.attr("mode") == "max":
        return {"X": _largest_sample(rule, dY, vertical, horizontal)}
    op, X, batch = rule.op, rule.input("X"), rule.input("batch_indices")
    V, H = (op.Unsqueeze(line.matrix(), [1]) for line in (vertical, horizontal))
    across = op.MatMul(dY, H)
    dX = drois = None
    if rule.needs("X"):
        regions = op.MatMul(op.Transpose(V, perm=[0, 1, 3, 2]), across)
        dX = scatter_rows(rule, X, batch, regions, 0)
    if rule.needs("rois"):
        images = op.Gather(X, batch, axis=0)
        dV = op.ReduceSum(op.MatMul(across, op.Transpose(images, perm=[0, 1, 3, 2])), [1], keepdims=0)
        dH = op.ReduceSum(op.MatMul(op.Transpose(dY, perm=[0, 1, 3, 2]), op.MatMul(V, images)), [1], keepdims=0)
        (y1, y2), (x1, x2) = vertical.corners(dV), horizontal.corners(dH)
        drois = op.Concat(x1, y1, x2, y2, axis=1)
    return {"X": dX, "rois": drois}


@dataclasses.dataclass
class _Line:
    """The samples of every region along one axis. Values are [regions, bins, samples, pixels] or broadcast to it."""

    rule: Rule
    position: Value  # where the samples are, in pixels
    share: Value  # how far along the region they are, from 0 to 1
    exists: Value | None  # whether the bin has that many samples; None if it always has
    near: Value  # whether the sample is at most one pixel outside the image
    each: Value  # one over the number of samples in a bin
    last: Value  # the index of the last pixel
    stretches: Value | None  # 1 where the region's length follows its corners

    def matrix(self) -> Value:
        """Return the interpolation matrices [regions, bins, pixels]."""
        op = self.rule.op
        distance = op.Abs(op.Sub(self.clamped(), self.pixels()))
        weight = op.Mul(op.Max(op.Sub(1.0, distance), 0.0), op.Mul(self.inside(), self.each))
        return op.ReduceSum(weight, [2], keepdims=0)

    def inside(self) -> Value:
        """Return 1 for a sample that counts, else 0."""
        op = self.rule.op
        both = self.near if self.exists is None else op.And(self.near, self.exists)
        return op.Cast(both, to=self.position.dtype)

    def neighbours(self) -> tuple[Value, Value, Value]:
        """Return index, weight and existence of the two neighbours of each sample: [regions, bins, 2 samples]."""
        op = self.rule.op
        place = self.clamped()
        low = op.Floor(place)
        part = op.Sub(place, low)
        index = op.Concat(low, op.Min(op.Add(low, 1.0), self.last), axis=3)
        weights = op.Mul(op.Concat(op.Sub(1.0, part), part, axis=3), self.inside())
        exists = op.GreaterOrEqual(index, 0.0)  # always true, in the same shape
        if self.exists is not None:
            exists = op.And(exists, self.exists)
        index = op.Cast(index, to=ir.DataType.INT64)
        rows, heights, there = (op.Reshape(v, [0, 0, -1]) for v in (index, weights, exists))
        return rows, heights, there

    def clamped(self) -> Value:
        op = self.rule.op
        return op.Min(op.Max(self.position, 0.0), self.last)

    def pixels(self) -> Value:
        op = self.rule.op
        count = op.Cast(op.Add(self.last, 1.0), to=ir.DataType.INT64)
        return op.Cast(op.Range(0, op.Squeeze(count, [0]), 1), to=self.position.dtype)

    def corners(self, grad: Value) -> tuple[Value, Value]:
        """Return the gradients of the start and the end of the regions, given those of the matrices."""
        op, dtype = self.rule.op, self.position.dtype
        signed = op.Sub(self.clamped(), self.pixels())
        # The right-hand slope of the hat function, as the samples' neighbours are floor and floor + 1.
        falling = op.And(op.GreaterOrEqual(signed, 0.0), op.Less(signed, 1.0))
        rising = op.And(op.GreaterOrEqual(signed, -1.0), op.Less(signed, 0.0))
        slope = op.Sub(op.Cast(rising, to=dtype), op.Cast(falling, to=dtype))
        moves = op.And(op.GreaterOrEqual(self.position, 0.0), op.Less(self.position, self.last))
        factor = op.Mul(op.Mul(op.Cast(moves, to=dtype), self.inside()), self.each)
        by_sample = op.Mul(op.ReduceSum(op.Mul(op.Unsqueeze(grad, [2]), slope), [3], keepdims=1), factor)
        scale = self.rule.attr("spatial_scale")
        start = op.Mul(op.ReduceSum(by_sample, [1, 2, 3], keepdims=1), scale)
        length = op.Mul(op.ReduceSum(op.Mul(by_sample, self.share), [1, 2, 3], keepdims=1), scale)
        if self.stretches is not None:
            length = op.Mul(length, self.stretches)
        first, second = (op.Reshape(v, [-1, 1]) for v in (op.Sub(start, length), length))
        return first, second


def _lines(rule: Rule, axis: int) -> _Line:
    """Return the samples along x (axis 0) or y (axis 1)."""
    op, rois, X = rule.op, rule.input("rois"), rule.input("X")
    dtype = X.dtype or ir.DataType.FLOAT
    bins = rule.attr("output_height" if axis else "output_width")
    half = rule.attr("coordinate_transformation_mode") == "half_pixel"
    scaled = op.Mul(rois, rule.attr("spatial_scale"))
    start, end = (op.Unsqueeze(op.Slice(scaled, [c], [c + 1], [1]), [2, 3]) for c in (axis, axis + 2))
    length = op.Sub(end, start)
    stretches = None
    if half:
        start = op.Sub(start, 0.5)
    else:
        stretches = op.Cast(op.Greater(length, 1.0), to=dtype)
        length = op.Max(length, 1.0)
    samples = rule.attr("sampling_ratio")
    exists: Value | None = None
    if samples > 0:
        steps = np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / samples
        share: Value = op.constant((steps / bins)[None, :, :, None], dtype)
        each: Value = op.constant(np.array(1 / samples), dtype)
    else:
        # As many samples as the bin has pixels. The number differs between regions; an empty region has none.
        counts = op.Ceil(op.Div(length, float(bins)))
        most = op.Cast(op.Max(op.ReduceMax(counts, keepdims=0), 0.0), to=ir.DataType.INT64)
        number = op.Unsqueeze(op.Cast(op.Range(0, most, 1), to=dtype), [1])
        each = op.Div(1.0, op.Max(counts, 1.0))
        bin_index = op.constant(np.arange(bins, dtype=np.float64)[:, None, None], dtype)
        share = op.Div(op.Add(bin_index, op.Mul(op.Add(number, 0.5), each)), float(bins))
        exists = op.Less(number, counts)
    position = op.Add(start, op.Mul(length, share))
    size = op.Cast(rule.dim_of(X, 2 if axis else 3), to=dtype)
    near = op.And(op.GreaterOrEqual(position, -1.0), op.LessOrEqual(position, size))
    return _Line(rule, position, share, exists, near, each, op.Sub(size, 1.0), stretches)


def _largest_sample(rule: Rule, dY: Value, vertical: _Line, horizontal: _Line) -> Value:
    """Return dX for mode max, where the output is the largest product of a neighbour's value and its weight."""
    if rule.needs("rois"):
        raise Unsupported("with mode max, its regions have no gradient; use mode avg")
    op, X, batch = rule.op, rule.input("X"), rule.input("batch_indices")
    rows, row_weights, row_exists = vertical.neighbours()
    columns, column_weights, column_exists = horizontal.neighbours()
    bins = rule.attr("output_height") * rule.attr("output_width")

    def pairs(of_rows: Value, of_columns: Value, combine: str) -> Value:
        """Return the combination of two neighbours: [regions, 1, bins, neighbours]."""
        both = op.call(combine, (op.Unsqueeze(of_rows, [3, 4]), op.Unsqueeze(of_columns, [1, 2])))[0]
        return op.Reshape(op.Transpose(both, perm=[0, 1, 3, 2, 4]), [0, 1, bins, -1])

    width = rule.dim_of(X, 3)
    channels = op.Concat(rule.dim_of(X, 1), np.array([1, 1], np.int64), axis=0)
    index = op.Expand(pairs(op.Mul(rows, width), columns, "Add"), channels)
    weight = pairs(row_weights, column_weights, "Mul")
    exists = pairs(row_exists, column_exists, "And")
    images = op.Reshape(op.Gather(X, batch, axis=0), [0, 0, -1])
    values = op.Reshape(op.GatherElements(images, op.Reshape(index, [0, 0, -1]), axis=2), op.Shape(index))
    best = op.ArgMax(op.Where(exists, op.Mul(values, weight), -np.inf), axis=3, keepdims=1)
    # A region without samples has the output 0 and no gradient.
    effective = op.Expand(op.Where(exists, weight, 0.0), channels)
    chosen = op.Reshape(op.GatherElements(effective, best, axis=3), [0, 0, -1])
    target = op.Reshape(op.GatherElements(index, best, axis=3), [0, 0, -1])
    share = op.Mul(op.Reshape(dY, [0, 0, -1]), chosen)
    regions = op.ScatterElements(rule.zeros_like(images), target, share, axis=2, reduction="add")
    shape = op.Concat(op.Shape(batch), op.Shape(X, start=1), axis=0)
    return scatter_rows(rule, X, batch, op.Reshape(regions, shape), 0)


@gradient("MaxRoiPool", opset=1, rois=ZERO)
def max_roi_pool(rule: Rule, dY: Value) -> Grads:
    """Y[r, bin] = the largest element of X in the bin, so dX adds dY there; an empty bin has none.

    The corners of a region are rounded to whole pixels, so their slope is 0. The maximum is taken along x first, then
    along y; the two indices give its position.
    """
    op, X, rois = rule.op, rule.input("X"), rule.input("rois")
    height, width = rule.attr("pooled_shape")
    batch = op.Cast(op.Squeeze(op.Slice(rois, [0], [1], [1]), [1]), to=ir.DataType.INT64)
    images = op.Gather(X, batch, axis=0)
    in_row = _members(rule, 1, width, 3)  # [regions, bins, pixels]
    in_column = _members(rule, 2, height, 2)
    # [regions, channels, y, bins x, x]
    along_x = op.Where(op.Unsqueeze(in_row, [1, 2]), op.Unsqueeze(images, [3]), -np.inf)
    best_x = op.ArgMax(along_x, axis=4, keepdims=0)
    largest = op.ReduceMax(along_x, [4], keepdims=0)
    # [regions, channels, bins y, bins x, y]
    by_bin = op.Unsqueeze(op.Transpose(largest, perm=[0, 1, 3, 2]), [2])
    members = op.Unsqueeze(in_column, [1, 3])
    best_y = op.ArgMax(op.Where(members, by_bin, -np.inf), axis=4, keepdims=0)
    x_of_best = op.GatherElements(best_x, best_y, axis=2)
    index = op.Reshape(op.Add(op.Mul(best_y, rule.dim_of(X, 3)), x_of_best), [0, 0, -1])
    some_y, some_x = (op.ReduceMax(op.Cast(m, to=X.dtype), [2], keepdims=0) for m in (in_column, in_row))
    exists = op.Unsqueeze(op.Mul(op.Unsqueeze(some_y, [2]), op.Unsqueeze(some_x, [1])), [1])
    share = op.Reshape(op.Mul(dY, exists), [0, 0, -1])
    flat = op.Reshape(images, [0, 0, -1])
    regions = op.ScatterElements(rule.zeros_like(flat), index, share, axis=2, reduction="add")
    shape = op.Concat(op.Shape(batch), op.Shape(X, start=1), axis=0)
    return {"X": scatter_rows(rule, X, batch, op.Reshape(regions, shape), 0)}


def _members(rule: Rule, corner: int, bins: int, axis: int) -> Value:
    """Return whether each pixel along one axis lies in each bin of each region: [regions, bins, pixels], bool."""
    op, rois, X = rule.op, rule.input("rois"), rule.input("X")
    dtype = X.dtype or ir.DataType.FLOAT
    scaled = op.Mul(rois, rule.attr("spatial_scale"))
    # Halves are rounded up, as C's round does for numbers that are not negative.
    start, end = (
        op.Unsqueeze(op.Floor(op.Add(op.Slice(scaled, [c], [c + 1], [1]), 0.5)), [2]) for c in (corner, corner + 2)
    )
    size = op.Div(op.Max(op.Add(op.Sub(end, start), 1.0), 1.0), float(bins))
    number = op.constant(np.arange(bins, dtype=np.float64)[:, None], dtype)
    first = op.Add(op.Floor(op.Mul(number, size)), start)
    behind = op.Add(op.Ceil(op.Mul(op.Add(number, 1.0), size)), start)
    pixels = op.Cast(op.Range(0, op.Squeeze(rule.dim_of(X, axis), [0]), 1), to=dtype)
    return op.And(op.GreaterOrEqual(pixels, first), op.Less(pixels, behind))
