"""Reads and writes by index: one linear index, so that Gather and ScatterND along one axis are enough."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

INT64 = ir.DataType.INT64


def linear(at: Lowering, sizes: list[int | Value]) -> list[int | Value]:
    """Return how many elements one step along each axis passes."""
    strides: list[int | Value] = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, at.mul(strides[0], size))
    return strides[: len(sizes)]


def wrapped(at: Lowering, index: Value, size: int | Value) -> Value:
    """Return an index that counts from the end where it is negative as one that counts from the front."""
    op = at.op
    return op.Where(op.Less(index, 0), op.Add(index, at.scalar(size)), index)


def elementwise_index(at: Lowering, data: Value, indices: Value, axis: int) -> Value:
    """Return the position in the flat `data` of each element that GatherElements or ScatterElements means."""
    op, rank = at.op, at.rank_of(data)
    strides = linear(at, at.sizes(data))
    index = wrapped(at, op.cast(indices, INT64), at.size(data, axis))
    place = op.Mul(index, at.scalar(strides[axis]))
    for other in range(rank):
        if other != axis:
            steps = op.Mul(at.count(at.size(indices, other)), at.scalar(strides[other]))
            place = op.Add(place, at.along(steps, other, rank))
    return place


@decomposition("GatherElements")
def gather_elements(at: Lowering) -> Value:
    """Gather from the flat tensor, by a linear index."""
    data, indices = at.input("data"), at.input("indices")
    place = elementwise_index(at, data, indices, at.axis(data))
    return at.op.Gather(at.op.Reshape(data, [-1]), place, axis=0)


def _tuple_index(at: Lowering, indices: Value, sizes: list[int | Value]) -> Value:
    """Return the linear index for the last axis of `indices`, whose entries count along axes of these sizes."""
    op = at.op
    total: Value | None = None
    for position, (size, stride) in enumerate(zip(sizes, linear(at, sizes), strict=True)):
        part = op.Gather(indices, position, axis=-1)
        part.shape = None if indices.shape is None else ir.Shape(list(indices.shape)[:-1])
        term = op.Mul(wrapped(at, part, size), at.scalar(stride))
        total = term if total is None else op.Add(total, term)
    assert total is not None
    return total


@decomposition("GatherND")
def gather_nd(at: Lowering) -> Value:
    """Gather of rows, by a linear index."""
    op, data, indices = at.op, at.input("data"), at.input("indices")
    batch = int(at.attr("batch_dims") or 0)
    depth, rank = at.known_dim(indices, -1), at.rank_of(data)
    sizes = at.sizes(data)
    if not depth:
        return _gather_rows(at, data, indices, batch)
    place = _tuple_index(at, indices, sizes[batch : batch + depth])
    step = at.mul(*sizes[batch : batch + depth])
    index_rank = at.rank_of(indices) - 1
    for axis, stride in zip(range(batch), linear(at, sizes[:batch]), strict=True):
        start = op.Mul(at.count(sizes[axis]), at.scalar(at.mul(stride, step)))
        place = op.Add(place, at.along(start, axis, index_rank))
    rows = at.reshape(data, [at.mul(*sizes[: batch + depth]), *sizes[batch + depth : rank]])
    return op.Gather(rows, place, axis=0)


def _gather_rows(at: Lowering, data: Value, indices: Value, batch: int) -> Value:
    """Return GatherND where the number of entries is known only at run time: zeros stand for the missing ones."""
    op, rank = at.op, at.rank_of(data)
    sizes, index_rank = at.sizes(data), at.rank_of(indices)
    depth = at.dim_of(indices, -1)
    missing = op.Sub([rank - batch], depth)
    full = op.Pad(indices, op.Concat(np.zeros(2 * index_rank - 1, np.int64), missing, axis=0))
    full.shape = ir.Shape([*[None] * (index_rank - 1), rank - batch])
    place = _tuple_index(at, full, sizes[batch:])
    strides = linear(at, sizes)
    for axis in range(batch):
        start = op.Mul(at.count(sizes[axis]), at.scalar(strides[axis]))
        place = op.Add(place, at.along(start, axis, index_rank - 1))
    rest = op.Slice(op.Shape(data), op.Add(depth, batch), [rank], [0])
    row = op.ReduceProd(rest, keepdims=1)
    rows = op.Gather(op.Reshape(data, op.Concat([-1], row, axis=0)), op.Div(place, row), axis=0)
    return op.Reshape(rows, op.Concat(op.Shape(indices, end=-1), rest, axis=0), allowzero=1)


def _scatter(at: Lowering, data: Value, place: Value, updates: Value, reduction: str | None) -> Value:
    """Return flat or rows of `data` with `updates` written at the positions `place`, a vector."""
    options = {} if reduction in (None, "none") else {"reduction": reduction}
    return at.op.ScatterND(data, at.op.Reshape(place, [-1, 1]), updates, **options)


@decomposition("ScatterElements")
def scatter_elements(at: Lowering) -> Value:
    """ScatterND into the flat tensor, by a linear index."""
    op, data, indices = at.op, at.input("data"), at.input("indices")
    place = elementwise_index(at, data, indices, at.axis(data))
    flat, updates = op.Reshape(data, [-1]), op.Reshape(at.input("updates"), [-1])
    return at.reshape(_scatter(at, flat, place, updates, at.attr("reduction")), at.sizes(data))


@decomposition("Scatter")
def scatter(at: Lowering) -> Value:
    """ScatterElements."""
    return at.op.ScatterElements(at.input("data"), at.input("indices"), at.input("updates"), axis=at.attr("axis"))


@decomposition("Compress")
def compress(at: Lowering) -> Value:
    """Gather at NonZero(condition)."""
    op, x, axis = at.op, at.input("input"), at.attr("axis")
    index = op.Reshape(op.NonZero(at.input("condition")), [-1])
    return op.Gather(op.Reshape(x, [-1]) if axis is None else x, index, axis=0 if axis is None else int(axis))


@decomposition("TensorScatter")
def tensor_scatter(at: Lowering) -> Value:
    """ScatterND of rows, by batch * sequence + position; circular positions by Mod."""
    op, past, update = at.op, at.input("past_cache"), at.input("update")
    axis, rank = at.axis(past), at.rank_of(past)
    sizes, length = at.sizes(past), at.size(update, axis)
    given = at.optional_input("write_indices")
    start = op.constant(np.zeros(1, np.int64)) if given is None else op.cast(given, INT64)
    place = op.Add(at.along(start, 0, axis + 1), at.count(length))
    if at.attr("mode") == "circular":
        place = op.Mod(place, at.scalar(sizes[axis]))
    strides = linear(at, sizes[: axis + 1])
    for other in range(axis):
        steps = op.Mul(at.count(sizes[other]), at.scalar(strides[other]))
        place = op.Add(place, at.along(steps, other, axis + 1))
    whole = at.vector([*sizes[:axis], length])
    rest = sizes[axis + 1 : rank]
    rows = at.reshape(past, [at.mul(*sizes[: axis + 1]), *rest])
    updates = at.reshape(update, [at.mul(*sizes[:axis], length), *rest])
    return at.reshape(_scatter(at, rows, op.Expand(place, whole), updates, None), sizes)
