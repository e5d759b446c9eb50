"""Reductions, arg-reductions and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from onward.backends.graph.shapes import reduced_axes
from onward.backends.jax.framework import ints, number
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, is_float


def _reduction(function: Callable[[Array, tuple[int, ...], bool], Array]) -> Callable[..., Array]:
    def run(attributes: Attributes, data: Array, axes: Any = None) -> Array:
        over = reduced_axes(attributes, None if axes is None else ints(axes), data.ndim)
        if not over:
            return function(data[None], (0,), False).astype(data.dtype)
        return function(data, tuple(over), bool(attributes.get("keepdims", 1))).astype(data.dtype)

    return run


def _mean(data: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return jnp.mean(data if is_float(data) else data.astype(jnp.float64), axes, keepdims=keep)


def norm(data: Array, axes: tuple[int, ...], keep: bool, p: int = 2) -> Array:
    """Return the p-norm; its gradient at zero is zero, not NaN."""
    if p == 1:
        return jnp.sum(jnp.abs(data), axes, keepdims=keep)
    total = jnp.sum(data * data if p == 2 else jnp.abs(data) ** p, axes, keepdims=keep)
    if not is_float(total):
        total = total.astype(jnp.float64)
    nothing = total == 0
    safe = jnp.where(nothing, 1, total)
    return jnp.where(nothing, 0, jnp.sqrt(safe) if p == 2 else safe ** (1 / p))


def lowest(dtype: Any, *, largest: bool = False) -> Any:
    """Return the lowest (largest) number of a type: what the maximum (minimum) of nothing is."""
    if dtype == jnp.bool_:
        return largest
    if jnp.issubdtype(dtype, jnp.floating):
        return math.inf if largest else -math.inf
    return int(jnp.iinfo(dtype).max if largest else jnp.iinfo(dtype).min)


def _extreme(data: Array, axes: tuple[int, ...], keep: bool, largest: bool) -> Array:
    function, empty = jnp.max if largest else jnp.min, not all(data.shape[a] for a in axes)
    initial = lowest(data.dtype, largest=not largest) if empty else None
    return function(data, axes, keepdims=keep, initial=initial)


op("ReduceSum")(_reduction(lambda x, a, k: jnp.sum(x, a, keepdims=k)))
op("ReduceMean")(_reduction(_mean))
op("ReduceMax")(_reduction(lambda x, a, k: _extreme(x, a, k, largest=True)))
op("ReduceMin")(_reduction(lambda x, a, k: _extreme(x, a, k, largest=False)))
op("ReduceProd")(_reduction(lambda x, a, k: jnp.prod(x, a, keepdims=k)))
op("ReduceL1")(_reduction(lambda x, a, k: norm(x, a, k, 1)))
op("ReduceL2")(_reduction(norm))
op("ReduceLogSum")(_reduction(lambda x, a, k: jnp.log(jnp.sum(x, a, keepdims=k))))
op("ReduceLogSumExp")(_reduction(lambda x, a, k: jax.nn.logsumexp(x, a, keepdims=k)))
op("ReduceSumSquare")(_reduction(lambda x, a, k: jnp.sum(x * x, a, keepdims=k)))


@op("ArgMax", "ArgMin")
def arg_extreme(attributes: Attributes, data: Array) -> Array:
    last, axis = bool(attributes.get("select_last_index", 0)), attributes["axis"] % data.ndim
    found = place_of_extreme(jnp.flip(data, axis) if last else data, axis, largest=attributes.op_type == "ArgMax")
    found = data.shape[axis] - 1 - found if last else found
    return found if attributes["keepdims"] else found.squeeze(axis)


def place_of_extreme(data: Array, axis: int, *, largest: bool = True) -> Array:
    """Return where the maximum (minimum) is; the axis is kept.

    JAX compiles this with a counter of the index type, outside of our `wide`: so that is an int32.
    """
    function = jax.lax.argmax if largest else jax.lax.argmin
    return jnp.expand_dims(function(data, axis % data.ndim, jnp.int32).astype(jnp.int64), axis)


@op("CumSum")
def cum_sum(attributes: Attributes, x: Array, axis: Any) -> Array:
    along = int(number(axis))
    if attributes["reverse"]:
        x = jnp.flip(x, along)
    result = jnp.cumsum(x, along, dtype=x.dtype)
    if attributes["exclusive"]:
        result = result - x
    return jnp.flip(result, along) if attributes["reverse"] else result


@op("CumProd", since=26)
def cum_prod(attributes: Attributes, x: Array, axis: Any) -> Array:
    along = int(number(axis))
    if attributes["reverse"]:
        x = jnp.flip(x, along)
    if attributes["exclusive"]:
        first, rest = jnp.split(x, [1], along)
        x = jnp.concatenate([jnp.ones_like(first), jax.lax.slice_in_dim(x, 0, rest.shape[along], axis=along)], along)
    result = jnp.cumprod(x, along, dtype=x.dtype)
    return jnp.flip(result, along) if attributes["reverse"] else result


@op("TopK")
def top_k(attributes: Attributes, x: Array, k: Any) -> tuple[Array, Array]:
    # A stable sort gives ONNX's order among equals: the lower index first.
    axis = attributes["axis"]
    order = jnp.argsort(x, axis, stable=True, descending=bool(attributes["largest"]))
    chosen = jax.lax.slice_in_dim(order, 0, int(number(k)), axis=axis)
    return jnp.take_along_axis(x, chosen, axis), chosen.astype(jnp.int64)
