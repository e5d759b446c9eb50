"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph.windows import Pads, Window, pooled, unpooled, window_of
from onward.backends.jax.framework import ints
from onward.backends.jax.ops.convolution import flat_windows, pad_spatial
from onward.backends.jax.ops.reduction import lowest, norm, place_of_extreme
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array


def _window(attributes: Attributes, x: Array) -> tuple[Window, list[int], Pads]:
    sizes = x.shape[1:-1] if attributes.get("channels_last") else x.shape[2:]
    window = window_of(attributes, sizes, attributes["kernel_shape"])
    return window, *pooled(attributes, sizes, window)


def _reduced(
    x: Array, start: Any, function: Callable[..., Any], window: Window, counts: list[int], pads: Pads, last: Any = False
) -> Array:
    """Return `function` over each window of `x`, padded with `start`: a constant, without which JAX has no gradient."""

    def full(inner: Any, one: Any) -> tuple[Any, ...]:
        return (one, *inner, one) if last else (one, one, *inner)

    y: Array = lax.reduce_window(
        x, np.asarray(start, x.dtype), function, full(window.kernel, 1), full(window.strides, 1), full(pads, (0, 0)),
        window_dilation=full(window.dilations, 1),
    )  # fmt: skip
    return y[full([slice(n) for n in counts], slice(None))]


@op("MaxPool")
def max_pool(attributes: Attributes, x: Array) -> Any:
    window, counts, pads = _window(attributes, x)
    low = lowest(x.dtype)
    if attributes.outputs == 1:
        return _reduced(x, low, lax.max, window, counts, pads, attributes.get("channels_last"))
    padded = pad_spatial(x, pads, low)
    index = flat_windows(window, counts, list(padded.shape[2:])).reshape(*counts, -1)
    windows = padded.reshape(*x.shape[:2], -1)[:, :, index]
    chosen = place_of_extreme(windows, -1)
    values = jnp.take_along_axis(windows, chosen, -1)[..., 0]
    position = jnp.take_along_axis(jnp.broadcast_to(index, windows.shape), chosen, -1)[..., 0]
    return values, _unpadded(position, x, pads, attributes.get("storage_order", 0))


def _unpadded(position: Array, x: Array, pads: Pads, order: int) -> Array:
    """Return flat positions in the whole unpadded tensor, as ONNX's Indices."""
    sizes = [x.shape[2 + i] + sum(p) for i, p in enumerate(pads)]
    coordinates: list[Array] = []
    for i in reversed(range(len(sizes))):
        coordinates.insert(0, position % sizes[i] - pads[i][0])
        position = position // sizes[i]
    flat: Any = 0
    for i in range(len(sizes)) if not order else reversed(range(len(sizes))):
        flat = flat * x.shape[2 + i] + coordinates[i]
    lead = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(sizes))
    return flat + lead * math.prod(x.shape[2:])


@op("AveragePool")
def average_pool(attributes: Attributes, x: Array) -> Array:
    window, counts, pads = _window(attributes, x)
    last = attributes.get("channels_last")
    ones = jnp.ones((1, 1, *(x.shape[1:-1] if last else x.shape[2:])), x.dtype)
    beyond = pads
    if attributes.get("count_include_pad", 0):
        ones = pad_spatial(ones, window.pads, 1)
        beyond = [(0, p[1] - g[1]) for p, g in zip(pads, window.pads, strict=True)]
    total = _reduced(x, 0, lax.add, window, counts, pads, last)
    count = _reduced(ones, 0, lax.add, window, counts, beyond)
    return total / (jnp.moveaxis(count, 1, -1) if last else count)


@op("LpPool")
def lp_pool(attributes: Attributes, x: Array) -> Array:
    window, counts, pads = _window(attributes, x)
    p = attributes["p"]
    total = _reduced(jnp.abs(x) ** p, 0, lax.add, window, counts, pads)
    return jnp.where(total == 0, 0, jnp.where(total == 0, 1, total) ** (1 / p))


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@op("GlobalAveragePool")
def global_average_pool(attributes: Attributes, x: Array) -> Array:
    return jnp.mean(x, tuple(range(1, x.ndim - 1)) if attributes.get("channels_last") else _spatial(x), keepdims=True)


@op("GlobalMaxPool")
def global_max_pool(attributes: Attributes, x: Array) -> Array:
    flat = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    first = place_of_extreme(flat, -1)  # the first of equal values gets the gradient
    return jnp.take_along_axis(flat, first, -1).reshape(*x.shape[:2], *[1] * (x.ndim - 2))


@op("GlobalLpPool")
def global_lp_pool(attributes: Attributes, x: Array) -> Array:
    return norm(x, _spatial(x), True, attributes["p"])


@op("MaxUnpool")
def max_unpool(attributes: Attributes, x: Array, indices: Array, shape: Any = None) -> Array:
    small = [*x.shape[:2], *unpooled(attributes, x.shape[2:])]
    size = small if shape is None else ints(shape)
    # The indices are positions in the original tensor, which has the inferred size.
    where: Any = indices.reshape(-1)
    if size != small:
        steps, new = ([math.prod(s[i + 1 :]) for i in range(len(s))] for s in (small, size))
        where = sum((where // a % n) * b for a, n, b in zip(steps, small, new, strict=True))
    return jnp.zeros(math.prod(size), x.dtype).at[where].set(x.reshape(-1)).reshape(size)
