"""Pools: windows by Gather, reduced along one axis after the other."""

from __future__ import annotations

from functools import reduce

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.passes.core._windows import Windows
from onward.passes.core.elementary import is_float
from onward.passes.core.registry import Lowering, decomposition

Size = int | Value
_GATHER = "Gather reads each element once per tap, and along one axis after the other"


@decomposition("MaxPool", kernel=_GATHER)
def max_pool(at: Lowering) -> list[Value | None]:
    """ReduceMax of the windows; for the indices, ArgMax of all taps, and the position of that tap."""
    X = at.input("X")
    windows = Windows(at, X, at.attr("kernel_shape"))
    dtype = at.dtype(X)
    lowest: object = -np.inf if is_float(dtype) else np.iinfo(dtype.numpy()).min
    if not at.wanted("Indices"):
        return [windows.reduced(windows.padded(lowest), "ReduceMax")]
    op, rank = at.op, windows.rank
    taps = at.mul(*windows.kernel)
    lead = [at.size(X, 0), at.size(X, 1)]
    columns = at.reshape(windows.patches(lowest), [*lead, taps, *windows.counts])
    best = op.ArgMax(columns, axis=2, keepdims=1)
    best.shape = ir.Shape([None, None, 1, *[None] * rank])
    sizes = windows.sizes if not at.attr("storage_order") else windows.sizes[::-1]
    steps: list[Size] = [1]
    for size in reversed(sizes[1:]):
        steps.insert(0, at.mul(steps[0], size))
    if at.attr("storage_order"):
        steps.reverse()
    # The position of each tap of each window in one image: [taps, windows ...].
    terms = []
    for axis in range(rank):
        own = op.Sub(op.Transpose(windows.index(axis), perm=[1, 0]), at.scalar(windows.begins[axis]))
        shape = [1] * 2 * rank
        parts: list[Size] = list(shape)
        parts[axis], parts[rank + axis] = windows.kernel[axis], windows.counts[axis]
        terms.append(op.Mul(at.reshape(own, parts), at.scalar(steps[axis])))
    place = op.Expand(reduce(op.Add, terms), at.vector([*windows.kernel, *windows.counts]))
    image = at.mul(*windows.counts)
    flat = op.Reshape(place, [-1])
    column = at.reshape(at.count(image), windows.counts)
    chosen = op.Gather(flat, op.Add(op.Mul(best, at.scalar(image)), column), axis=0)
    first = op.Mul(at.count(at.mul(*lead)), at.scalar(at.mul(*windows.sizes)))
    index = op.Add(at.reshape(chosen, [*lead, *windows.counts]), at.reshape(first, [*lead, *[1] * rank]))
    return [op.ReduceMax(columns, [2], keepdims=0), index]


@decomposition("AveragePool", kernel=_GATHER)
def average_pool(at: Lowering) -> Value:
    """ReduceSum of the windows / the number of elements in each, which is a product over the axes."""
    op, X = at.op, at.input("X")
    windows = Windows(at, X, at.attr("kernel_shape"))
    total = windows.reduced(windows.padded(), "ReduceSum")
    include = bool(at.attr("count_include_pad"))
    dtype = at.dtype(X)
    for axis in range(windows.rank):
        plain = all(isinstance(p, int) and p == 0 for p in (windows.begins[axis], windows.ends[axis]))
        if plain or (include and not windows.ceil):
            number: Value = op.constant(windows.kernel[axis], dtype)
        else:
            number = op.Cast(_members(at, windows, axis, include), to=dtype)
        total = op.Div(total, number)
    return total


def _members(at: Lowering, windows: Windows, axis: int, include: bool) -> Value:
    """Return how many elements of each window along one axis count."""
    op, index = at.op, windows.index(axis)
    behind = at.add(windows.begins[axis], windows.sizes[axis])
    if include:
        behind = at.add(behind, windows.given_ends[axis])
    counted = op.Less(index, at.scalar(behind))
    if not include:
        counted = op.And(counted, op.Less(at.scalar(at.sub(windows.begins[axis], 1)), index))
    number = op.ReduceSum(op.Cast(counted, to=ir.DataType.INT64), [1], keepdims=0)
    number.shape = ir.Shape([None])
    return at.along(number, axis, windows.rank)


@decomposition("LpPool", kernel=_GATHER)
def lp_pool(at: Lowering) -> Value:
    """The p-th root of the ReduceSum of |X|^p over the windows."""
    windows = Windows(at, at.input("X"), at.attr("kernel_shape"))
    powers = _power(at, windows.padded())
    return _root(at, windows.reduced(powers, "ReduceSum"))


def _power(at: Lowering, x: Value) -> Value:
    op, p = at.op, int(at.attr("p"))
    made = op.Abs(x) if p == 1 else op.Mul(x, x) if p == 2 else op.Pow(op.Abs(x), op.constant(float(p), x.dtype))
    made.shape = x.shape
    return made


def _root(at: Lowering, x: Value) -> Value:
    op, p = at.op, int(at.attr("p"))
    return x if p == 1 else op.Sqrt(x) if p == 2 else op.Pow(x, op.constant(1.0 / p, x.dtype))


def _spatial(at: Lowering, X: Value) -> list[int]:
    return list(range(2, at.rank_of(X)))


@decomposition("GlobalAveragePool")
def global_average_pool(at: Lowering) -> Value:
    """ReduceMean over the image."""
    return at.op.ReduceMean(at.input("X"), _spatial(at, at.input("X")), keepdims=1)


@decomposition("GlobalMaxPool")
def global_max_pool(at: Lowering) -> Value:
    """ReduceMax over the image."""
    return at.op.ReduceMax(at.input("X"), _spatial(at, at.input("X")), keepdims=1)


@decomposition("GlobalLpPool")
def global_lp_pool(at: Lowering) -> Value:
    """The p-th root of the ReduceSum of |X|^p over the image."""
    X = at.input("X")
    return _root(at, at.op.ReduceSum(_power(at, X), _spatial(at, X), keepdims=1))


@decomposition("MaxUnpool")
def max_unpool(at: Lowering) -> Value:
    """ScatterND into zeros."""
    op, X = at.op, at.input("X")
    rank = len(at.attr("kernel_shape"))
    kernel, pads = at.attr("kernel_shape"), at.attr("pads") or [0] * 2 * rank
    strides = at.attr("strides") or [1] * rank
    lead = [at.size(X, 0), at.size(X, 1)]
    sizes = [
        at.add(at.mul(at.sub(at.size(X, 2 + i), 1), int(strides[i])), int(kernel[i] - pads[i] - pads[i + rank]))
        for i in range(rank)
    ]
    cells = at.mul(*lead, *sizes)
    zeros = op.Expand(op.constant(0, at.dtype(X)), at.vector([cells]))
    flat = op.ScatterND(zeros, op.Reshape(at.input("I"), [-1, 1]), op.Reshape(X, [-1]))
    made = at.reshape(flat, [*lead, *sizes])
    wanted = at.optional_input("output_shape")
    if wanted is None:
        return made
    # As in the standard's reference, I counts in the shape that the attributes give, at the start of the output.
    missing = op.Sub(wanted, at.vector([*lead, *sizes]))
    return op.Pad(made, op.Concat(np.zeros(2 + rank, np.int64), missing, axis=0))


@decomposition("LRN")
def lrn(at: Lowering) -> Value:
    """X / (bias + alpha / size * the ReduceSum of squares over neighbouring channels)^beta."""
    op, X, size = at.op, at.input("X"), int(at.attr("size"))
    dtype, rank = at.dtype(X), at.rank_of(X)
    before = (size - 1) // 2
    pads = np.zeros(2 * rank, np.int64)
    pads[1], pads[rank + 1] = before, size - 1 - before
    squares = op.Pad(op.Mul(X, X), pads)
    channels = at.reshape(at.count(at.size(X, 1)), [-1, 1])
    near = op.Gather(squares, op.Add(channels, np.arange(size, dtype=np.int64)), axis=1)
    total = op.ReduceSum(near, [2], keepdims=0)
    base = op.Add(op.Mul(total, op.constant(at.attr("alpha") / size, dtype)), op.constant(at.attr("bias"), dtype))
    return op.Div(X, op.Pow(base, op.constant(at.attr("beta"), dtype)))
