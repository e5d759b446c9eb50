"""Reductions, cumulative sums, and the places of extremes."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.frontends.jaxpr.frame import Frame
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.graph.builder import Value

_REDUCE = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_or": "ReduceMax",
    "reduce_and": "ReduceMin",
}
_TYPES = (np.float32, np.float64, np.int32, np.int64)


@primitive(*_REDUCE)
def reduce(frame: Frame, equation: Any, x: Value) -> Value:
    """Reduce over axes; booleans as 0 and 1."""
    axes, out = equation.params["axes"], equation.outvars[0].aval
    if equation.primitive.name in ("reduce_or", "reduce_and") and out.dtype != bool:
        raise UnsupportedError("a reduction of the bits of integers")
    if not axes:
        return x
    return _reduced(frame, _REDUCE[equation.primitive.name], x, axes, out.dtype)


def _reduced(frame: Frame, operator: str, x: Value, axes: Any, dtype: Any) -> Value:
    wide = dtype if dtype in _TYPES else np.float32 if dtype == np.float16 else np.int32
    made = getattr(frame.op, operator)(frame.cast(x, wide), np.array(axes, np.int64), keepdims=0)
    return frame.cast(made, dtype)


@primitive("psum", "psum_invariant", "pmax", "pmin")
def over_named_axes(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """Reductions inside vmap(axis_name=...), where the axis is one of the array."""
    if any(not isinstance(axis, int) for axis in equation.params["axes"]):
        raise UnsupportedError("it communicates between devices; capture the function of one device")
    operator = {"pmax": "ReduceMax", "pmin": "ReduceMin"}.get(equation.primitive.name, "ReduceSum")
    return [
        _reduced(frame, operator, x, equation.params["axes"], v.aval.dtype)
        for x, v in zip(values, equation.outvars, strict=True)
    ]


@primitive(
    "axis_index", "all_gather", "all_to_all", "ppermute", "reduce_scatter", "psum_scatter", "pbroadcast", "shard_map",
    "xla_pmap",
)  # fmt: skip
def between_devices(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """Refused: device collectives."""
    raise UnsupportedError("it communicates between devices; capture the function of one device")


@primitive("argmax", "argmin")
def argument_of_extreme(frame: Frame, equation: Any, x: Value) -> Value:
    """The place of the first extreme."""
    (axis,) = equation.params["axes"]
    operator = "ArgMax" if equation.primitive.name == "argmax" else "ArgMin"
    dtype = equation.invars[0].aval.dtype
    wide = (
        dtype
        if dtype in (np.float32, np.float64, np.int32)
        else np.int32
        if np.dtype(dtype) == np.bool_
        else np.float64
    )
    made = getattr(frame.op, operator)(frame.cast(x, wide), axis=int(axis), keepdims=0)
    return frame.cast(made, equation.outvars[0].aval.dtype)


@primitive("cumsum")
def cumulative_sum(frame: Frame, equation: Any, x: Value) -> Value:
    """The sums of the elements up to each one."""
    dtype = equation.invars[0].aval.dtype
    wide = dtype if dtype in _TYPES else np.float32 if dtype == np.float16 else np.int32
    axis, reverse = int(equation.params["axis"]), int(equation.params["reverse"])
    return frame.cast(frame.op.CumSum(frame.cast(x, wide), np.int64(axis), reverse=reverse), dtype)


@primitive("cumlogsumexp")
def cumulative_log_sum(frame: Frame, equation: Any, x: Value) -> Value:
    """log of the sums of the exponentials up to each element, shifted by the greatest of all."""
    from onward.frontends.jaxpr.derivatives import stop_gradient

    op, axis = frame.op, int(equation.params["axis"])
    greatest = stop_gradient(frame, op.ReduceMax(x, np.array([axis], np.int64), keepdims=1))
    sums = op.CumSum(op.Exp(op.Sub(x, greatest)), np.int64(axis), reverse=int(equation.params["reverse"]))
    made: Value = op.Add(op.Log(sums), greatest)
    return made


@primitive("cumprod", "cummax", "cummin")
def cumulative(frame: Frame, equation: Any, x: Value) -> Value:
    """By doubling: each element takes in those 1, 2, 4, … places before it."""
    op, aval = frame.op, equation.invars[0].aval
    axis, length = int(equation.params["axis"]), equation.invars[0].aval.shape[int(equation.params["axis"])]
    if not isinstance(length, int):
        raise UnsupportedError("over an axis of free size")
    operator = {"cumprod": "Mul", "cummax": "Max", "cummin": "Min"}[equation.primitive.name]
    distance, made = 1, x
    ax = np.array([axis], np.int64)
    while distance < length:
        rest, first = np.array([distance], np.int64), np.array([length - distance], np.int64)
        if equation.params["reverse"]:
            kept = op.Slice(made, first, np.array([length]), ax)
            both = getattr(op, operator)(
                op.Slice(made, np.array([0]), first, ax), op.Slice(made, rest, np.array([length]), ax)
            )
            made = op.Concat(both, kept, axis=axis)
        else:
            kept = op.Slice(made, np.array([0]), rest, ax)
            both = getattr(op, operator)(
                op.Slice(made, rest, np.array([length]), ax), op.Slice(made, np.array([0]), first, ax)
            )
            made = op.Concat(kept, both, axis=axis)
        distance *= 2
    return made if made is not x else frame.cast(op.Identity(x), aval.dtype)
