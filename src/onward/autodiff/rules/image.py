"""Sampling images at computed places: GridSample, AffineGrid, Col2Im."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value

# The weight of each neighbour as a polynomial of the distance t to the pixel at floor(coordinate), lowest power first.
_LINEAR: dict[int, tuple[float, ...]] = {0: (1.0, -1.0), 1: (0.0, 1.0)}
_A = -0.75  # the standard fixes the cubic kernel's parameter
_CUBIC: dict[int, tuple[float, ...]] = {
    -1: (0.0, _A, -2 * _A, _A),
    0: (1.0, 0.0, -(_A + 3), _A + 2),
    1: (0.0, -_A, 2 * _A + 3, -(_A + 2)),
    2: (0.0, 0.0, _A, -_A),
}
_KERNELS: dict[str, dict[int, tuple[float, ...]]] = {
    "linear": _LINEAR,
    "bilinear": _LINEAR,
    "cubic": _CUBIC,
    "bicubic": _CUBIC,
    "nearest": {0: (1.0,)},
}


@gradient("GridSample", opset=16)
def grid_sample(rule: Rule, dY: Value) -> Grads:
    """Y[p] = the sum over neighbours k of w_k(grid[p]) X[k], so dX adds w_k dY[p] at each neighbour.

    dgrid[p] = the sum over k of dw_k/dgrid times (X[k] dY[p]). It is 0 for nearest neighbours, and at coordinates
    clamped to the border. A cubic kernel clamps the neighbours instead, as ONNX Runtime and PyTorch do.
    """
    return _Sampling(rule, dY).gradients()


class _Sampling:
    """One GridSample: D spatial axes, N images, P points in each, K neighbours of each point."""

    def __init__(self, rule: Rule, dY: Value) -> None:
        self.rule, self.op = rule, rule.op
        self.X, self.grid, self.dY = rule.input("X"), rule.input("grid"), dY
        ranks = [r for r in (rule.rank(self.X), rule.rank(self.grid)) if r is not None]
        if not ranks:
            raise Unsupported("the rank of X is not known; give its shape")
        self.D = ranks[0] - 2
        self.dtype = self.X.dtype or ir.DataType.FLOAT
        self.mode, self.padding = rule.attr("mode"), rule.attr("padding_mode")
        self.aligned = bool(rule.attr("align_corners"))
        self.kernel = _KERNELS[self.mode]
        # Offsets of the K neighbours, by axis in the grid's order: x first.
        self.offsets = np.array(list(itertools.product(self.kernel, repeat=self.D)), np.int64).T

    def gradients(self) -> Grads:
        """Return the gradients of X and the grid."""
        rule, op = self.rule, self.op
        axes = [self._axis(d) for d in range(self.D)]
        index = reduce(
            lambda total, d: op.Add(op.Mul(total, self._size(d)), axes[d]["index"]),
            reversed(range(self.D - 1)),
            axes[-1]["index"],
        )
        inside = [a["inside"] for a in axes if a["inside"] is not None]
        mask = op.Cast(reduce(op.And, inside), to=self.dtype) if inside else None
        image, points = op.Reshape(self.X, [0, 0, -1]), op.Reshape(self.dY, [0, 0, -1])
        pixels, places = rule.static_shape(self.X), rule.static_shape(self.grid)
        if pixels is not None:
            image.shape = ir.Shape([*pixels[:2], int(np.prod(pixels[2:]))])
        if pixels is not None and places is not None:
            points.shape = ir.Shape([*pixels[:2], int(np.prod(places[1:-1]))])
        row = op.Reshape(index, [0, 1, -1])
        spread = op.Unsqueeze(points, [3])
        by_grid = rule.needs("grid") and self.mode != "nearest"
        return {
            "X": self._by_image(axes, mask, image, points, row, spread) if rule.needs("X") else None,
            "grid": self._by_grid(axes, mask, image, points, row, spread) if by_grid else None,
        }

    def _by_image(
        self, axes: list[dict[str, Any]], mask: Value | None, image: Value, points: Value, row: Value, spread: Value
    ) -> Value:
        """Return dX: each dY times the weights of its neighbours, added at the neighbours."""
        rule, op = self.rule, self.op
        weights = [w for w in (*(a["weight"] for a in axes), mask) if w is not None]
        values = op.Mul(spread, op.Unsqueeze(reduce(op.Mul, weights), [1])) if weights else spread
        updates = op.Reshape(values, [0, 0, -1])
        known = rule.static_shape(points)
        if known is not None:
            updates.shape = ir.Shape([*known[:2], known[2] * self.offsets.shape[1]])
        column = op.Expand(row, rule.shape_of(updates))
        added = op.ScatterElements(rule.zeros_like(image), column, updates, axis=2, reduction="add")
        return rule.reshape_like(added, self.X)

    def _by_grid(
        self, axes: list[dict[str, Any]], mask: Value | None, image: Value, points: Value, row: Value, spread: Value
    ) -> Value:
        """Return dgrid: the slopes of the weights times the neighbours times dY."""
        rule, op, count = self.rule, self.op, self.offsets.shape[1]
        neighbours = op.GatherElements(image, op.Expand(row, self._channels()), axis=2)
        known = rule.static_shape(points)
        shape = [*known, count] if known is not None else op.Concat(op.Shape(points), [count], axis=0)
        shares = op.ReduceSum(op.Mul(op.Reshape(neighbours, shape), spread), [1], keepdims=0)
        if mask is not None:
            shares = op.Mul(shares, mask)
        parts = [self._by_coordinate(axes, d, shares) for d in range(self.D)]
        return rule.reshape_like(op.Concat(*parts, axis=2), self.grid)

    def _channels(self) -> Value:
        """Return the shape [channels, 1], over which indices are expanded."""
        channels = self.rule.dim_of(self.X, 1)
        if channels.const_value is not None:
            return self.op.constant([int(channels.const_value.numpy()[0]), 1])
        return self.op.Concat(channels, [1], axis=0)

    def _size(self, d: int) -> Value:
        """Return the size of the image along axis d of the grid's order, as int64."""
        return self.rule.dim_of(self.X, self.D + 1 - d)

    def _axis(self, d: int) -> dict[str, Any]:
        """Return the neighbours along one axis: index and whether inside [N, P, K], weight, slope and chain factor."""
        op, rule = self.op, self.rule
        known = rule.known_dim(self.X, self.D + 1 - d)
        if known is not None:
            size: Value = op.constant(np.array([known]), self.dtype)
            last: Value = op.constant(np.array([known - 1]), self.dtype)
        else:
            size = op.Cast(self._size(d), to=self.dtype)
            last = op.Sub(size, 1.0)
        points = op.Reshape(self.grid, [0, -1, self.D])
        given = op.Slice(points, [d], [d + 1], [2])
        scale = op.Mul(last if self.aligned else size, 0.5)
        shifted = op.Mul(op.Add(given, 1.0), scale)
        place = shifted if self.aligned else op.Sub(shifted, 0.5)
        if self.mode == "nearest":
            place = op.Round(place)  # halves to even, as PyTorch does
        cubic = self.kernel is _CUBIC
        place, factor = (place, None) if cubic and self.padding == "border" else self._pad(place, last)
        base = op.Floor(place)
        neighbour = op.Add(base, op.constant(self.offsets[d].astype(np.float64), self.dtype))
        inside = None
        if self.padding == "zeros":
            inside = op.And(op.GreaterOrEqual(neighbour, 0.0), op.LessOrEqual(neighbour, last))
        elif self.padding == "reflection":
            neighbour, _ = self._reflect(neighbour, last)
        index = op.Cast(op.Min(op.Max(neighbour, 0.0), last), to=ir.DataType.INT64)
        weight = slope = None
        if self.mode != "nearest":
            t = op.Sub(place, base)
            powers = list(zip(*(self.kernel[o] for o in self.offsets[d].tolist()), strict=True))
            weight = self._polynomial(t, powers)
            slope = self._polynomial(t, [tuple(k * c for c in power) for k, power in enumerate(powers)][1:])
        factor = scale if factor is None else op.Mul(scale, factor)
        return {"index": index, "inside": inside, "weight": weight, "slope": slope, "factor": factor}

    def _pad(self, place: Value, last: Value) -> tuple[Value, Value | None]:
        """Return coordinates moved into the image and their slope; None stands for a slope of 1."""
        op = self.op
        if self.padding == "zeros":
            return place, None
        if self.padding == "reflection":
            return self._reflect(place, last)
        margin = 0.0 if self.aligned else 0.5
        outside = op.Or(op.Less(place, -margin), op.Greater(place, op.Add(last, margin)))
        moved = op.Where(outside, op.Min(op.Max(place, 0.0), last), place)
        return moved, op.Cast(op.Not(outside), to=self.dtype)

    def _reflect(self, place: Value, last: Value) -> tuple[Value, Value]:
        """Return coordinates mirrored at the borders until they are inside, and the slope: 1 or -1."""
        op = self.op
        low = 0.0 if self.aligned else -0.5
        # An image of one pixel has no width between aligned corners; every neighbour is that pixel for any width.
        width = op.Max(last, 1.0) if self.aligned else op.Add(last, 1.0)
        distance = place if self.aligned else op.Add(place, 0.5)
        count = op.Floor(op.Div(distance, width))
        rest = op.Sub(distance, op.Mul(count, width))
        odd = op.Equal(op.Sub(count, op.Mul(op.Floor(op.Mul(count, 0.5)), 2.0)), 1.0)
        inner = op.Where(odd, op.Sub(width, rest), rest)
        slope = op.Sub(1.0, op.Mul(op.Cast(odd, to=self.dtype), 2.0))
        return (inner if self.aligned else op.Add(inner, low)), slope

    def _polynomial(self, t: Value, powers: list[tuple[float, ...]]) -> Value:
        """Return the polynomial of each neighbour at t, by Horner's rule."""
        constants = [self.op.constant(np.array(p), self.dtype) for p in powers]
        total = constants[-1]
        for constant in reversed(constants[:-1]):
            total = self.op.Add(self.op.Mul(total, t), constant)
        return total

    def _by_coordinate(self, axes: list[dict[str, Any]], d: int, shares: Value) -> Value:
        """Return the gradient of the grid's coordinate d: [N, P, 1]."""
        op = self.op
        others = [a["weight"] for e, a in enumerate(axes) if e != d]
        product = reduce(op.Mul, [shares, axes[d]["slope"], *others])
        return op.Mul(op.ReduceSum(product, [2], keepdims=1), axes[d]["factor"])


@gradient("AffineGrid", opset=20, size=NON_DIFFERENTIABLE)
def affine_grid(rule: Rule, dgrid: Value) -> Grads:
    """grid[p] = theta @ (p, 1), so dtheta = the sum over points of dgrid[p] (p, 1)^T.

    The points p are the grid of the identity.
    """
    op, theta, size = rule.op, rule.input("theta"), rule.input("size")
    D, rank = rule.known_dim(theta, 1), rule.rank(dgrid)
    if D is None and rank is not None:
        D = rank - 2
    if D is not None:
        identity, columns = op.constant(np.eye(D, D + 1)[None], theta.dtype), op.Reshape(dgrid, [0, -1, D])
    else:
        count = rule.dim_of(theta, 1)
        square = op.ConstantOfShape(op.Concat(count, op.Add(count, 1), axis=0))
        identity = op.Unsqueeze(op.EyeLike(square, dtype=theta.dtype), [0])
        columns = op.Reshape(dgrid, op.Concat(np.array([0, -1], np.int64), count, axis=0))
    known = rule.constant_input("size")
    single: Value | np.ndarray
    if known is not None:
        single = np.concatenate([[1], known[1:]]).astype(np.int64)
    else:
        single = op.Concat(np.array([1], np.int64), op.Slice(size, [1], [np.iinfo(np.int64).max]), axis=0)
    points = op.Flatten(op.AffineGrid(identity, single, align_corners=rule.attr("align_corners")), axis=-1)
    ones = op.Add(op.Mul(op.Slice(points, [0], [1], [1]), 0.0), 1.0)
    return {"theta": op.MatMul(op.Transpose(columns, perm=[0, 2, 1]), op.Concat(points, ones, axis=1))}


@gradient("Col2Im", opset=18, image_shape=NON_DIFFERENTIABLE, block_shape=NON_DIFFERENTIABLE)
def col2im(rule: Rule, doutput: Value) -> Grads:
    """output adds blocks where they overlap, so dinput reads each block from doutput (im2col)."""
    op, D = rule.op, _spatial_axes(rule, doutput)
    strides, dilations = (rule.attr(name) or [1] * D for name in ("strides", "dilations"))
    pads = rule.attr("pads") or [0] * 2 * D
    axes = np.arange(2, D + 2, dtype=np.int64)
    padded = op.Pad(doutput, np.array(pads, np.int64), None, axes) if any(pads) else doutput
    known = rule.constant_input("block_shape")
    for d in range(D):
        axis, size = 2 + 2 * d, rule.known_dim(doutput, 2 + d)  # each axis before this one has become two
        if known is not None and size is not None:
            last = size + pads[d] + pads[d + D] - (int(known[d]) - 1) * dilations[d]
            places = np.arange(int(known[d]))[:, None] * dilations[d] + np.arange(0, last, strides[d])
            padded = op.Gather(padded, places.astype(np.int64), axis=axis)
            continue
        if known is not None:
            block = op.constant(np.array(int(known[d]), np.int64))
        else:
            block = op.Gather(rule.input("block_shape"), d, axis=0)
        length = op.Squeeze(op.Shape(padded, start=axis, end=axis + 1), [0])
        reach = op.Mul(op.Sub(block, 1), dilations[d])
        starts = op.Range(0, op.Sub(length, reach), strides[d])
        taps = op.Mul(op.Range(0, block, 1), dilations[d])
        padded = op.Gather(padded, op.Add(op.Unsqueeze(taps, [1]), starts), axis=axis)
    order = [0, 1, *range(2, 2 * D + 2, 2), *range(3, 2 * D + 2, 2)]
    return {"input": rule.reshape_like(op.Transpose(padded, perm=order), rule.input("input"))}


def _spatial_axes(rule: Rule, doutput: Value) -> int:
    """Return the number of spatial axes, from the attributes or a known shape."""
    rank = rule.rank(doutput)
    given = [len(a) for name in ("strides", "dilations") if (a := rule.attr(name))]
    sizes = [rule.known_dim(rule.input(name), 0) for name in ("image_shape", "block_shape")]
    for count in (*given, None if rank is None else rank - 2, *sizes):
        if count is not None:
            return count
    raise Unsupported("the number of spatial axes is not known; give image_shape its shape, or strides")
