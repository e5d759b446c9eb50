"""Resize and Upsample: along each axis a Gather of neighbours, times weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

Size = int | Value
FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


@decomposition("Upsample")
def upsample(at: Lowering) -> Value:
    """Resize with asymmetric coordinates and floor."""
    return at.op.Resize(
        at.input("X"), None, at.input("scales"), mode=at.attr("mode"), coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip


@decomposition("Resize", kernel="Gather reads each neighbour apart, along one axis after the other")
def resize(at: Lowering) -> Value:
    """Along each axis: the sum over the neighbours of weight * Gather(X, index), both computed from the sizes."""
    X = at.input("X")
    rank = at.rank_of(X)
    given = at.attr("axes") if "axes" in at.node.attributes else None
    axes = list(range(rank)) if given is None else [int(a) % rank for a in given]
    dtype = at.dtype(X)
    whole = not dtype.is_floating_point() and at.attr("mode") != "nearest"
    value = at.op.Cast(X, to=FLOAT) if whole else X  # integers are rounded once, at the end
    value.shape = X.shape
    for position, axis in enumerate(axes):
        one = _Axis(at, X, axis, position, axes)
        if not one.unchanged:
            value = one.apply(value)
    if whole:
        return at.op.Cast(value, to=dtype)
    return value if value is not X else at.op.Identity(X)


class _Axis:
    """One axis of a Resize: its sizes, its scale (double) and the neighbours of each new place."""

    def __init__(self, at: Lowering, X: Value, axis: int, position: int, axes: list[int]) -> None:
        self.at, self.op, self.axis, self.position, self.axes = at, at.op, axis, position, axes
        self.rank = at.rank_of(X)
        self.size = at.size(X, axis)
        # Nearest neighbours in float32, so that halves fall as in the runtimes; weights in double.
        self.real = FLOAT if at.attr("mode") == "nearest" else ir.DataType.DOUBLE
        self.transform = at.attr("coordinate_transformation_mode")
        self.crops = self.transform == "tf_crop_and_resize"
        sizes, scales = at.constant_input("sizes"), at.constant_input("scales")
        self.by_sizes = at.optional_input("sizes") is not None
        policy = at.attr("keep_aspect_ratio_policy") if "keep_aspect_ratio_policy" in _names(at) else "stretch"
        self.policy = policy if self.by_sizes else "stretch"
        same = False
        if self.by_sizes and self.policy == "stretch" and sizes is not None:
            same = isinstance(self.size, int) and int(sizes[position]) == self.size
        elif not self.by_sizes and scales is not None:
            same = float(scales[position]) == 1.0
        self.unchanged = same and not self.crops
        if self.unchanged:
            return
        self.floating = at.op.Cast(at.scalar(self.size), to=self.real)
        if self.by_sizes:
            wanted = self._entry("sizes", position)
            if self.policy == "stretch":
                self.out: Value = wanted
                self.scale = at.op.Div(at.op.Cast(wanted, to=self.real), self.floating)
            else:
                ratios = [
                    at.op.Div(
                        at.op.Cast(self._entry("sizes", i), to=self.real), at.op.Cast(_dim(at, X, a), to=self.real)
                    )
                    for i, a in enumerate(axes)
                ]
                choose = at.op.Min if self.policy == "not_larger" else at.op.Max
                self.scale = choose(*ratios) if len(ratios) > 1 else ratios[0]
                self.out = at.op.Cast(at.op.Floor(at.op.Add(at.op.Mul(self.scale, self.floating), 0.5)), to=INT64)
        else:
            scale = self._entry("scales", position)
            self.scale = at.op.Cast(scale, to=self.real)
            product = at.op.Mul(scale, at.op.Cast(at.scalar(self.size), to=FLOAT))
            self.out = at.op.Cast(at.op.Floor(product), to=INT64)
        self.exact = at.op.Mul(self.scale, self.floating)  # the new size, not rounded

    def _entry(self, name: str, position: int) -> Value:
        made = self.op.Gather(self.at.input(name), position, axis=0)
        made.shape = ir.Shape([])
        return made

    def places(self) -> Value:
        """Return where the new elements lie in X, as double."""
        op, mode = self.op, self.transform
        counted = op.Range(0, self.out, 1)
        counted.shape = ir.Shape([None])
        x = op.Cast(counted, to=self.real)
        out = op.Cast(self.out, to=self.real)
        last = op.Sub(self.floating, 1.0)
        centre = op.Sub(op.Div(op.Add(x, 0.5), self.scale), 0.5)
        if mode == "asymmetric":
            return op.Div(x, self.scale)
        if mode == "align_corners":
            steps = op.Sub(out, 1.0)
            return op.Div(op.Mul(x, last), op.Max(steps, 1.0))
        if mode == "pytorch_half_pixel":
            return op.Where(op.Less(1.0, out), centre, -0.5)
        if mode == "half_pixel_symmetric":
            offset = op.Mul(op.Mul(self.floating, 0.5), op.Sub(1.0, op.Div(out, self.exact)))
            return op.Add(centre, offset)
        if self.crops:
            roi = op.Cast(self.at.input("roi"), to=self.real)
            start, end = (op.Gather(roi, self.position + i * len(self.axes), axis=0) for i in (0, 1))
            step = op.Div(op.Mul(op.Sub(end, start), last), op.Max(op.Sub(out, 1.0), 1.0))
            several = op.Add(op.Mul(start, last), op.Mul(x, step))
            return op.Where(op.Less(1.0, out), several, op.Mul(op.Mul(op.Add(start, end), 0.5), last))
        return centre

    def apply(self, value: Value) -> Value:
        """Return `value` with this axis resized."""
        at, op = self.at, self.op
        place, mode, dtype = self.places(), at.attr("mode"), at.dtype(value)
        place.shape = ir.Shape([None])
        last = at.scalar(at.sub(self.size, 1))
        if mode == "nearest":
            index = op.Cast(self._rounded(place), to=INT64)
            made = op.Gather(value, op.Min(op.Max(index, 0), last), axis=self.axis)
            made.shape = None if value.shape is None else ir.Shape([*[None] * self.rank])
        else:
            base = op.Floor(place)
            index, weights = self._neighbours(op.Sub(place, base), linear=mode == "linear")
            index = op.Add(index, op.Cast(at.reshape(base, [-1, 1]), to=INT64))
            if at.attr("exclude_outside"):
                inside = op.And(op.Less(-1, index), op.Less(index, op.Add(last, 1)))
                weights = op.Where(inside, weights, 0.0)
                weights = op.Div(weights, op.ReduceSum(weights, [1], keepdims=1))
            weights.shape = ir.Shape([None, None])
            near = op.Gather(value, op.Min(op.Max(index, 0), last), axis=self.axis)
            taps = at.reshape(weights, [*at.sizes(weights), *[1] * (self.rank - 1 - self.axis)])
            kind = dtype if dtype.is_floating_point() else FLOAT
            wide = kind if kind == ir.DataType.DOUBLE else FLOAT
            product = op.Mul(op.cast(near, wide), op.Cast(taps, to=wide))
            made = op.ReduceSum(product, [self.axis + 1], keepdims=0)
            made = op.cast(made, dtype) if dtype.is_floating_point() else op.Cast(made, to=dtype)
        made.shape = ir.Shape([None] * self.rank)
        if self.crops:
            outside = op.Or(op.Less(place, 0.0), op.Less(op.Sub(self.floating, 1.0), place))
            fill = op.constant(float(at.attr("extrapolation_value")), dtype)
            made = op.Where(at.along(outside, self.axis, self.rank), fill, made)
            made.shape = ir.Shape([None] * self.rank)
        return made

    def _rounded(self, place: Value) -> Value:
        op = self.op
        match self.at.attr("nearest_mode"):
            case "floor":
                return op.Floor(place)
            case "ceil":
                return op.Ceil(place)
            case "round_prefer_ceil":
                return op.Floor(op.Add(place, 0.5))
            case _:
                return op.Ceil(op.Sub(place, 0.5))

    def _neighbours(self, part: Value, *, linear: bool) -> tuple[Value, Value]:
        """Return the offsets [taps] and weights [places, taps] of the neighbours of places `part` behind a pixel."""
        at, op = self.at, self.op
        antialias = bool(at.attr("antialias")) if "antialias" in _names(at) else False
        reach = 1 if linear else 2
        row = at.reshape(part, [-1, 1])
        if antialias:
            scale = op.Min(self.scale, 1.0)
            start = op.Cast(op.Add(op.Floor(op.Div(-float(reach), scale)), 1.0), to=INT64)
            taps = op.Sub(2, op.Mul(start, 2))
            offsets = op.Add(op.Range(0, taps, 1), start)
            offsets.shape = ir.Shape([None])
            distance = op.Mul(op.Sub(op.Cast(offsets, to=self.real), row), scale)
        else:
            offsets = op.constant(np.arange(1 - reach, 1 + reach, dtype=np.int64))
            distance = op.Sub(op.Cast(offsets, to=self.real), row)
        size = op.Abs(distance)
        weights = op.Max(op.Sub(1.0, size), 0.0) if linear else self._cubic(size)
        if antialias:
            weights = op.Div(weights, op.ReduceSum(weights, [1], keepdims=1))
        return offsets, weights

    def _cubic(self, d: Value) -> Value:
        """Return the cubic kernel at a distance: two polynomials, and 0 from 2 on."""
        op, a = self.op, float(self.at.attr("cubic_coeff_a"))
        near = op.Add(op.Mul(op.Mul(op.Sub(op.Mul(d, a + 2), a + 3), d), d), 1.0)
        far = op.Sub(op.Mul(op.Add(op.Mul(op.Sub(op.Mul(d, a), 5 * a), d), 8 * a), d), 4 * a)
        return op.Where(op.Less(d, 1.0), near, op.Where(op.Less(d, 2.0), far, 0.0))


def _names(at: Lowering) -> tuple[str, ...]:
    assert at.schema is not None
    return at.schema.attributes


def _dim(at: Lowering, X: Value, axis: int) -> Value:
    return at.scalar(at.size(X, axis))
