"""Conv, ConvTranspose, DeformConv and Col2Im."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph.shapes import along
from onward.backends.graph.windows import Pads, Window, transposed, window_of
from onward.backends.jax.framework import ints
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array


def pad_spatial(x: Array, pads: Pads, value: Any = 0) -> Array:
    """Pad (crop, if negative) the spatial axes, which are all but the first two."""
    return lax.pad(x, jnp.asarray(value, x.dtype), [(0, 0, 0), (0, 0, 0), *((b, a, 0) for b, a in pads)])


def flat_windows(window: Window, counts: list[int], sizes: list[int]) -> np.ndarray:
    """Return [*counts, *kernel]: the flat positions that each window reads in an image of `sizes`."""
    rank = len(counts)
    index = np.zeros([1] * (2 * rank), np.int64)
    for i in range(rank):
        places = np.arange(counts[i])[:, None] * window.strides[i] + np.arange(window.kernel[i]) * window.dilations[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = counts[i], window.kernel[i]
        index = index * sizes[i] + places.reshape(shape)
    return index


@op("Conv")
def conv(attributes: Attributes, x: Array, w: Array, b: Array | None = None) -> Array:
    last = bool(attributes.get("channels_last"))
    window = window_of(attributes, x.shape[1:-1] if last else x.shape[2:], w.shape[2:])
    image = lax.ConvDimensionNumbers(*_specs(x.ndim, last))
    y = lax.conv_general_dilated(
        x, w, window.strides, window.pads, rhs_dilation=window.dilations, feature_group_count=attributes["group"],
        dimension_numbers=image,
    )  # fmt: skip
    return y if b is None else y + b.reshape(along(y.ndim - 1 if last else 1, y.ndim))


def _specs(rank: int, last: bool) -> tuple[tuple[int, ...], ...]:
    """Return where batch, channels and the other axes are: of the image, of the kernel, of the result."""
    image = (0, rank - 1, *range(1, rank - 1)) if last else tuple(range(rank))
    return image, tuple(range(rank)), image


@op("ConvTranspose")
def conv_transpose(attributes: Attributes, x: Array, w: Array, b: Array | None = None) -> Array:
    """A convolution of the input with gaps of `strides` and the kernel turned around."""
    window, crop = transposed(attributes, x.shape[2:], w.shape[2:])
    groups, rank = attributes["group"], w.ndim - 2
    kernel = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    kernel = jnp.flip(kernel.reshape(-1, w.shape[0] // groups, *w.shape[2:]), tuple(range(2, w.ndim)))
    reach = [window.span(i) - 1 for i in range(rank)]
    y = lax.conv_general_dilated(
        x, kernel, [1] * rank, [(r + before, r + after) for r, (before, after) in zip(reach, crop, strict=True)],
        lhs_dilation=window.strides, rhs_dilation=window.dilations, feature_group_count=groups,
    )  # fmt: skip
    return y if b is None else y + b.reshape(along(1, y.ndim))


@op("DeformConv", since=19)
def deform_conv(
    attributes: Attributes, x: Array, w: Array, offset: Array, b: Array | None = None, mask: Array | None = None
) -> Array:
    """A convolution whose taps are moved by `offset` and read by linear interpolation, zero outside the image."""
    rank, groups, shifts = w.ndim - 2, attributes["group"], attributes["offset_group"]
    image, sizes = list(offset.shape[2:]), list(x.shape[2:])
    window = window_of(attributes, sizes, w.shape[2:])
    n, channels, kernel = x.shape[0], x.shape[1], window.kernel
    moved = offset.reshape(n, shifts, *kernel, rank, *image)
    at = []
    for axis in range(rank):
        taps = (jnp.arange(kernel[axis]) * window.dilations[axis]).reshape(along(axis, 2 * rank))
        places = jnp.arange(image[axis]) * window.strides[axis] - window.pads[axis][0]
        at.append(taps + places.reshape(along(rank + axis, 2 * rank)) + moved.take(axis, 2 + rank))
    low = [jnp.floor(lax.stop_gradient(a)).astype(jnp.int64) for a in at]
    flat = x.reshape(n, shifts, channels // shifts, math.prod(sizes))
    columns: Any = 0
    for corner in itertools.product((0, 1), repeat=rank):
        inside, weight, place = jnp.ones_like(low[0], dtype=bool), jnp.ones_like(at[0]), jnp.zeros_like(low[0])
        for axis, side in enumerate(corner):
            index = low[axis] + side
            inside = inside & (index >= 0) & (index < sizes[axis])
            weight = weight * (1 - jnp.abs(at[axis] - index))
            place = place * sizes[axis] + jnp.clip(index, 0, sizes[axis] - 1)
        chosen = jnp.take_along_axis(flat, place.reshape(n, shifts, 1, -1), 3)
        columns = columns + chosen * jnp.where(inside, weight, 0).reshape(n, shifts, 1, -1)
    if mask is not None:
        columns = columns * mask.reshape(n, shifts, 1, math.prod(kernel) * math.prod(image))
    rows = columns.reshape(n, groups, channels // groups * math.prod(kernel), math.prod(image))
    y = jnp.matmul(w.reshape(groups, w.shape[0] // groups, -1), rows).reshape(n, w.shape[0], *image)
    return (y if b is None else y + b.reshape(along(1, y.ndim))).astype(x.dtype)


@op("Col2Im")
def col2im(attributes: Attributes, x: Array, image: Any, block: Any) -> Array:
    sizes, kernel = ints(image), ints(block)
    window = window_of(attributes, sizes, kernel)
    padded = [n + sum(p) for n, p in zip(sizes, window.pads, strict=True)]
    counts = [(padded[i] - window.span(i)) // window.strides[i] + 1 for i in range(len(sizes))]
    index = flat_windows(window, counts, padded).reshape(math.prod(counts), math.prod(kernel)).T
    n, channels = x.shape[0], x.shape[1] // math.prod(kernel)
    out = jnp.zeros((n, channels, math.prod(padded)), x.dtype)
    out = out.at[:, :, index].add(x.reshape(n, channels, *index.shape))
    return pad_spatial(out.reshape(n, channels, *padded), [(-before, -after) for before, after in window.pads])
