"""Reductions; those that the standard defines by others are in `standard.py`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.passes.core.elementary import is_float
from onward.passes.core.registry import Lowering, decomposition

NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@decomposition("ReduceMean")
def reduce_mean(at: Lowering) -> Value:
    """ReduceSum / the number of elements; 16-bit types are summed as float32, since their sums overflow."""
    op, x = at.op, at.input("data")
    wide = op.Cast(x, to=ir.DataType.FLOAT) if x.dtype in NARROW else x
    total = _reduce(at, "ReduceSum", wide)
    quotient = op.Div(total, _number(at, x, wide))
    return op.cast(quotient, x.dtype) if x.dtype in NARROW and x.dtype is not None else quotient


def _number(at: Lowering, x: Value, like: Value) -> Value:
    """Return how many elements make one of the result, in the type of `like`."""
    op, axes, given = at.op, at.constant_input("axes"), at.optional_input("axes")
    noop = bool(at.attr("noop_with_empty_axes"))
    dtype = at.dtype(like)
    if given is None or (axes is not None and axes.size == 0):
        if noop:
            return op.constant(1, dtype)
        static = at.static_shape(x)
        if static is not None:
            return op.constant(int(np.prod(static)), dtype)
        return op.Cast(op.ReduceProd(op.Shape(x), keepdims=0), to=dtype)
    if axes is not None and at.rank(x) is not None:
        known = at.known_size(x, [int(a) for a in axes])
        if known is not None:
            return op.constant(known, dtype)
    number = op.ReduceProd(op.Gather(op.Shape(x), given), keepdims=0)
    if axes is None and not noop:
        everything = op.ReduceProd(op.Shape(x), keepdims=0)
        number = op.Where(op.Equal(op.Size(given), 0), everything, number)
    return op.Cast(number, to=dtype)


def _reduce(at: Lowering, op_type: str, x: Value) -> Value:
    """Return another reduction of `x` with the node's axes and attributes."""
    keep, noop = int(at.attr("keepdims")), int(at.attr("noop_with_empty_axes"))
    (made,) = at.op.call(op_type, [x, at.optional_input("axes")], keepdims=keep, noop_with_empty_axes=noop)
    made.type = x.type
    return made


@decomposition("ReduceMin")
def reduce_min(at: Lowering) -> Value:
    """-ReduceMax(-X); for integers and booleans the complement, which does not overflow."""
    op, x = at.op, at.input("data")
    dtype = at.dtype(x)
    if dtype == ir.DataType.BOOL:
        return op.Not(_reduce(at, "ReduceMax", op.Not(x)))
    if is_float(dtype):
        return op.Mul(_reduce(at, "ReduceMax", op.Mul(x, -1.0)), -1.0)
    ones = np.array(-1).astype(dtype.numpy())
    return op.BitwiseXor(_reduce(at, "ReduceMax", op.BitwiseXor(x, ones)), ones)


@decomposition("ReduceLogSumExp")
def reduce_log_sum_exp(at: Lowering) -> Value:
    """m + Log(ReduceSum(Exp(X - m))), m = ReduceMax(X): the body in the standard overflows."""
    op, x, axes = at.op, at.input("data"), at.optional_input("axes")
    noop = int(at.attr("noop_with_empty_axes"))
    x = x if is_float(at.dtype(x)) else op.Cast(x, to=ir.DataType.FLOAT)
    most = op.ReduceMax(x, axes, keepdims=1, noop_with_empty_axes=noop)
    finite = op.Where(op.Less(op.Abs(most), np.inf), most, 0.0)
    total = op.Log(_reduce(at, "ReduceSum", op.Exp(op.Sub(x, finite))))
    if not at.attr("keepdims"):
        finite = op.ReduceMax(finite, axes, keepdims=0, noop_with_empty_axes=noop)
    dtype = at.dtype(at.input("data"))
    found = op.Add(total, finite)
    return found if is_float(dtype) else op.Cast(found, to=dtype)


@decomposition("ArgMax")
def arg_max(at: Lowering) -> Value:
    """The smallest (or last) index at which X equals ReduceMax(X), or is NaN."""
    return _arg(at, at.input("data"))


@decomposition("ArgMin")
def arg_min(at: Lowering) -> Value:
    """ArgMax of -X; of the complement for integers."""
    op, x = at.op, at.input("data")
    dtype = at.dtype(x)
    turned = op.Mul(x, -1.0) if is_float(dtype) else op.BitwiseXor(x, np.array(-1).astype(dtype.numpy()))
    return _arg(at, turned)


def _arg(at: Lowering, x: Value) -> Value:
    op, data = at.op, at.input("data")
    axis, rank, keep = at.axis(data), at.rank_of(data), int(at.attr("keepdims"))
    size = at.size(data, axis)
    same = op.Equal(x, op.ReduceMax(x, [axis], keepdims=1))
    if is_float(at.dtype(data)):
        same = op.Or(same, op.Not(op.Equal(x, x)))
    place = at.count(size)
    last = bool(at.attr("select_last_index"))
    rising = place if last else op.Sub(at.scalar(at.sub(size, 1)), place)
    found = op.ReduceMax(op.Where(same, at.along(rising, axis, rank), -1), [axis], keepdims=keep)
    return found if last else op.Sub(at.scalar(at.sub(size, 1)), found)
