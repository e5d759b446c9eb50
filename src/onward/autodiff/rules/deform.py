"""DeformConv: a convolution whose taps are moved by learned offsets and read by linear interpolation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._windows import extent, reshape, reshape_target, spatial_rank
from onward.autodiff.types import Grads
from onward.graph.builder import Value

Size = int | Value


@gradient("DeformConv", opset=19)
def deform_conv(rule: Rule, dY: Value) -> Grads:
    """Y = W (mask * columns), a column being X read at base + offset: the sum over the corners c around it of w_c X_c.

    dcolumns = W^T dY * mask, dmask = W^T dY . columns, dX_c = dcolumns w_c, doffset = dcolumns . the sum of w_c' X_c.
    """
    op, X, W = rule.op, rule.input("X"), rule.input("W")
    taps = _Taps(rule)
    mask, B = rule.optional_input("mask"), rule.optional_input("B")
    grads: dict[str, Value | list[Value | None] | None] = {}
    if B is not None and rule.needs("B"):
        grads["B"] = rule.sum_over(dY, [0, *range(2, taps.rank + 2)])
    group = int(rule.attr("group", 1))
    channels, outputs = extent(rule, W, 1), _divide(rule, extent(rule, W, 0), group)
    rows = _times(rule, [channels, taps.size])
    dY_rows = reshape(rule, dY, [taps.batch, group, outputs, taps.image])
    kernels = reshape(rule, W, [group, outputs, rows])
    factor = None if mask is None else reshape(rule, mask, [taps.batch, taps.offset_group, 1, taps.places])
    if rule.needs("W"):
        columns = taps.columns if factor is None else op.Mul(taps.columns, factor)
        right = op.Transpose(reshape(rule, columns, [taps.batch, group, rows, taps.image]), perm=[0, 1, 3, 2])
        product = op.ReduceSum(op.MatMul(dY_rows, right), [0], keepdims=0)
        grads["W"] = rule.reshape_like(product, W)
    if rule.needs("X") or rule.needs("offset") or (mask is not None and rule.needs("mask")):
        spread = op.MatMul(op.Transpose(kernels, perm=[0, 2, 1]), dY_rows)
        dcolumns = reshape(rule, spread, [taps.batch, taps.offset_group, taps.channels, taps.places])
        if mask is not None and rule.needs("mask"):
            by_mask = op.ReduceSum(op.Mul(dcolumns, taps.columns), [2], keepdims=0)
            grads["mask"] = rule.reshape_like(by_mask, mask)
        if factor is not None:
            dcolumns = op.Mul(dcolumns, factor)
        if rule.needs("X"):
            grads["X"] = rule.reshape_like(taps.scatter(dcolumns), X)
        if rule.needs("offset"):
            offset = rule.input("offset")
            slopes = [op.ReduceSum(op.Mul(dcolumns, taps.slope(axis)), [2], keepdims=0) for axis in range(taps.rank)]
            parts = [reshape(rule, s, [taps.batch, taps.offset_group, taps.size, 1, taps.image]) for s in slopes]
            grads["offset"] = rule.reshape_like(op.Concat(*parts, axis=3), offset)
    return grads


class _Taps:
    """Where the taps of the kernel read X: the corners around each place, their weights and the values there.

    All are [N, offset groups, channels or 1, taps * image]; the last axis runs over the taps, then over the image.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule, self.op = rule, rule.op
        op = rule.op
        X, W, offset = rule.input("X"), rule.input("W"), rule.input("offset")
        self.rank = rank = spatial_rank(rule, X, W, offset)
        self.offset_group = int(rule.attr("offset_group", 1))
        self.batch = extent(rule, X, 0)
        self.channels = _divide(rule, extent(rule, X, 1), self.offset_group)
        self.sizes = [extent(rule, X, a) for a in range(2, rank + 2)]
        given = rule.attr("kernel_shape")
        kernel: list[Size] = list(given) if given else [extent(rule, W, a) for a in range(2, rank + 2)]
        image: list[Size] = [extent(rule, offset, a) for a in range(2, rank + 2)]
        self.size, self.image = _times(rule, kernel), _times(rule, image)
        self.places = _times(rule, [self.size, self.image])
        self.dtype = X.dtype or ir.DataType.FLOAT
        strides, dilations = rule.attr("strides") or [1] * rank, rule.attr("dilations") or [1] * rank
        pads = rule.attr("pads") or [0] * 2 * rank
        moved = reshape(rule, offset, [self.batch, self.offset_group, self.size, rank, self.image])
        axes = op.multi("Split", moved, outputs=rank, axis=3, num_outputs=rank)
        self.low: list[Value] = []
        self.fraction: list[Value] = []
        for axis in range(rank):
            tap = op.Mul(_coordinate(rule, kernel, axis), int(dilations[axis]))
            place = op.Sub(op.Mul(_coordinate(rule, image, axis), int(strides[axis])), int(pads[axis]))
            base = op.cast(op.Add(op.Unsqueeze(tap, [1]), op.Unsqueeze(place, [0])), self.dtype)
            position = op.Add(op.Squeeze(axes[axis], [3]), base)
            position = reshape(rule, position, [self.batch, self.offset_group, 1, self.places])
            low = op.Floor(position)
            self.low.append(op.Cast(low, to=ir.DataType.INT64))
            self.fraction.append(op.Sub(position, low))
        self.pixels = _times(rule, self.sizes)
        self.corners = [self._corner(c) for c in itertools.product((0, 1), repeat=rank)]
        self._flat = reshape(rule, X, [self.batch, self.offset_group, self.channels, self.pixels])
        self._wide = reshape_target(rule, [self.batch, self.offset_group, self.channels, self.places])
        self.values = [op.GatherElements(self._flat, self._expanded(where), axis=3) for _, where, _ in self.corners]

    def _corner(self, corner: tuple[int, ...]) -> tuple[tuple[int, ...], Value, Value]:
        """Return the corner, its position in X (any if it is outside), and a mask: 1 inside, 0 outside."""
        op = self.op
        where: Value | None = None
        inside: Value | None = None
        for axis, side in enumerate(corner):
            size = self.sizes[axis]
            index = op.Add(self.low[axis], side) if side else self.low[axis]
            last = op.constant(np.array(size - 1)) if isinstance(size, int) else op.Sub(op.Squeeze(size, [0]), 1)
            held = op.Min(op.Max(index, 0), last)
            same = op.Equal(index, held)
            inside = same if inside is None else op.And(inside, same)
            where = held if where is None else op.Add(op.Mul(where, op.Add(last, 1)), held)
        assert where is not None
        assert inside is not None
        return corner, where, op.Cast(inside, to=self.dtype)

    def _expanded(self, where: Value) -> Value:
        return self.op.Expand(where, self._wide)

    def _weight(self, corner: tuple[int, ...], inside: Value, without: int | None = None) -> Value:
        """Return the corner's weight: the product of its nearness over all axes except `without`."""
        op, weight = self.op, inside
        for axis, side in enumerate(corner):
            if axis != without:
                near = self.fraction[axis] if side else op.Sub(1.0, self.fraction[axis])
                weight = op.Mul(weight, near)
        return weight

    @property
    def columns(self) -> Value:
        """The values that the taps read."""
        pairs = zip(self.values, self.corners, strict=True)
        return self.op.Sum(*(self.op.Mul(value, self._weight(c, inside)) for value, (c, _, inside) in pairs))

    def slope(self, axis: int) -> Value:
        """Return the derivative of the columns with respect to the offset along one axis."""
        op = self.op
        terms = []
        for value, (corner, _, inside) in zip(self.values, self.corners, strict=True):
            term = op.Mul(value, self._weight(corner, inside, without=axis))
            terms.append(term if corner[axis] else op.Neg(term))
        return op.Sum(*terms)

    def scatter(self, dcolumns: Value) -> Value:
        """Return the gradient of X, [N, offset groups, channels, pixels]."""
        op = self.op
        shares = [op.Mul(dcolumns, self._weight(c, i)) for c, _, i in self.corners]
        places = [self._expanded(w) for _, w, _ in self.corners]
        return op.ScatterElements(
            self.rule.zeros_like(self._flat), op.Concat(*places, axis=3), op.Concat(*shares, axis=3), axis=3,
            reduction="add",
        )  # fmt: skip


def _times(rule: Rule, sizes: Sequence[Size]) -> Size:
    """Return the product of sizes: a number if all are numbers, else a 1-D value."""
    number = 1
    value: Value | None = None
    for size in sizes:
        if isinstance(size, int):
            number *= size
        else:
            value = size if value is None else rule.op.Mul(value, size)
    if value is None:
        return number
    return value if number == 1 else rule.op.Mul(value, [number])


def _divide(rule: Rule, size: Size, by: int) -> Size:
    if isinstance(size, int):
        return size // by
    return size if by == 1 else rule.op.Div(size, [by])


def _coordinate(rule: Rule, sizes: Sequence[Size], axis: int) -> Value:
    """Return, for each element of a box of these sizes in row-major order, its coordinate along one axis (int64)."""
    op = rule.op
    if all(isinstance(s, int) for s in sizes):
        numbers = [s for s in sizes if isinstance(s, int)]
        return op.constant(np.indices(numbers)[axis].reshape(-1))
    total, inner = _times(rule, sizes), _times(rule, sizes[axis + 1 :])
    end = op.constant(np.array(total)) if isinstance(total, int) else op.Squeeze(total, [0])
    steps = op.Range(0, end, 1)
    outer = op.Div(steps, [inner] if isinstance(inner, int) else inner)
    size = sizes[axis]
    return op.Mod(outer, [size] if isinstance(size, int) else size)
