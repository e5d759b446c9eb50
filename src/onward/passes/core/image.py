"""Images read at computed places: GridSample and DeformConv, with the neighbours that their gradients use."""

from __future__ import annotations

from functools import reduce

import onnx_ir as ir

from onward.autodiff.rules._windows import reshape
from onward.autodiff.rules.deform import _Taps
from onward.autodiff.rules.image import _Sampling
from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition


@decomposition("GridSample", kernel="Gather reads each neighbour apart, by an index per neighbour")
def grid_sample(at: Lowering) -> Value:
    """The sum over the neighbours of each point of weight * Gather(X, index)."""
    op, X, grid = at.op, at.input("X"), at.input("grid")
    if at.dtype(X) != at.dtype(grid):  # in the type of the grid
        options = {n: at.attr(n) for n in ("mode", "padding_mode", "align_corners")}
        return op.Cast(op.GridSample(op.Cast(X, to=at.dtype(grid)), grid, **options), to=at.dtype(X))
    sampling = _Sampling(at, X)
    D, count = sampling.D, sampling.offsets.shape[1]
    axes = [sampling._axis(d) for d in range(D)]
    index = axes[-1]["index"]
    for d in reversed(range(D - 1)):
        index = op.Add(op.Mul(index, sampling._size(d)), axes[d]["index"])
    batch, channels = at.size(X, 0), at.size(X, 1)
    places = [at.size(grid, 1 + d) for d in range(D)]
    points = at.mul(*places)
    flat = at.reshape(X, [batch, channels, at.mul(*(at.size(X, 2 + d) for d in range(D)))])
    row = at.reshape(index, [batch, 1, at.mul(points, count)])
    wide = op.Expand(row, at.vector([batch, channels, at.mul(points, count)]))
    wide.shape = ir.Shape([None, None, None])
    near = at.reshape(op.GatherElements(flat, wide, axis=2), [batch, channels, points, count])
    factors = [a["weight"] for a in axes if a["weight"] is not None]
    inside = [a["inside"] for a in axes if a["inside"] is not None]
    if inside:
        factors.append(op.Cast(reduce(op.And, inside), to=at.dtype(X)))
    if factors:
        weights = reduce(op.Mul, factors)
        near = op.Mul(near, at.reshape(weights, [batch, 1, points, count]))
    return at.reshape(op.ReduceSum(near, [3], keepdims=0), [batch, channels, *places])


@decomposition("DeformConv", kernel="the columns hold each element of X once per tap and corner")
def deform_conv(at: Lowering) -> Value:
    """MatMul(W as a matrix, columns): a column is the weighted sum of the corners around the moved taps."""
    op, W, mask, B = at.op, at.input("W"), at.optional_input("mask"), at.optional_input("B")
    taps, offset = _Taps(at), at.input("offset")
    group = int(at.attr("group", 1))
    rows, outputs = at.mul(at.size(W, 1), taps.size), at.div(at.size(W, 0), group)
    columns = taps.columns
    if mask is not None:
        columns = op.Mul(columns, reshape(at, mask, [taps.batch, taps.offset_group, 1, taps.places]))
    right = at.reshape(columns, [taps.batch, group, rows, taps.image])
    product = op.MatMul(at.reshape(W, [group, outputs, rows]), right)
    image = [at.size(offset, 2 + i) for i in range(taps.rank)]
    Y = at.reshape(product, [taps.batch, at.size(W, 0), *image])
    return Y if B is None else op.Add(Y, at.reshape(B, [-1, *[1] * taps.rank]))


@decomposition("AffineGrid")
def affine_grid(at: Lowering) -> Value:
    """MatMul(theta, the points of the grid and 1). The body in the standard loses a batch of one sample."""
    op, theta, size = at.op, at.input("theta"), at.input("size")
    count = at.known_dim(theta, 1) or at.known_dim(size, 0) or 2
    if at.known_dim(theta, 1) is None and at.known_dim(size, 0) is None:
        branches = []
        for number in (2, 3):
            inner = op.inner(f"{op.prefix}{number}d/")
            made = _affine_grid(Lowering(at.node, inner), number)
            branches.append(ir.Graph([], [made], nodes=inner.nodes, name=f"{op.prefix}{number}d"))
        plane, volume = branches
        (grid,) = op.call("If", [op.Equal(op.Size(size), 4)], then_branch=plane, else_branch=volume)
        grid.type = theta.type
        return grid
    return _affine_grid(at, count if at.known_dim(theta, 1) else count - 2)


def _affine_grid(at: Lowering, count: int) -> Value:
    """Return the grid of images with `count` axes."""
    op, theta, size = at.op, at.input("theta"), at.input("size")
    known, dtype = at.constant_input("size"), at.dtype(theta)
    sizes: list[int | Value] = [
        int(known[2 + d]) if known is not None else op.Slice(size, [2 + d], [3 + d], [0]) for d in range(count)
    ]
    points = []
    for axis in reversed(range(count)):  # x comes first
        total = op.Cast(at.scalar(sizes[axis]), to=dtype)
        place = op.Cast(at.count(sizes[axis]), to=dtype)
        if at.attr("align_corners"):
            line = op.Sub(op.Div(op.Mul(place, 2.0), op.Max(op.Sub(total, 1.0), 1.0)), 1.0)
        else:
            line = op.Sub(op.Div(op.Add(op.Mul(place, 2.0), 1.0), total), 1.0)
        line.shape = ir.Shape([None])
        wide = op.Expand(at.along(line, axis, count), at.vector(sizes))
        points.append(at.reshape(wide, [1, at.mul(*sizes)]))
    ones = op.Expand(op.constant(1.0, dtype), at.vector([1, at.mul(*sizes)]))
    product = op.MatMul(theta, op.Concat(*points, ones, axis=0))
    return at.reshape(op.Transpose(product, perm=[0, 2, 1]), [at.size(theta, 0), *sizes, count])
