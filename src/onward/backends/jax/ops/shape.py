"""Shapes: reshape, slice, pad, join, repeat, and the values made from shapes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph import shapes
from onward.backends.graph.common import register_shapes
from onward.backends.graph.shapes import along, mirrored, pad_amounts, reshaped, slices, split_sizes
from onward.backends.jax.framework import JAX, ints, number
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, jax_type

register_shapes(JAX)


@op("ConstantOfShape")
def constant_of_shape(attributes: Attributes, sizes: Any) -> Array:
    value = attributes.get("value")
    return jnp.zeros(ints(sizes), jnp.float32) if value is None else jnp.broadcast_to(value.reshape(()), ints(sizes))


@op("Range")
def range_(attributes: Attributes, start: Any, limit: Any, delta: Any) -> Array:
    first, last, by = (number(v) for v in (start, limit, delta))
    count = max(math.ceil((last - first) / by), 0) if isinstance(first, float) else max(-((first - last) // by), 0)
    return jnp.asarray(first, start.dtype) + jnp.arange(count, dtype=start.dtype) * jnp.asarray(by, start.dtype)


@op("EyeLike")
def eye_like(attributes: Attributes, x: Array) -> Array:
    dtype = jax_type(attributes["dtype"]) if "dtype" in attributes else x.dtype
    rows, columns = x.shape
    return jnp.eye(rows, columns, k=attributes.get("k", 0), dtype=dtype)


@op("Reshape")
def reshape(attributes: Attributes, x: Array, sizes: Any) -> Array:
    return x.reshape(reshaped(attributes, x.shape, ints(sizes)))


@op("Flatten")
def flatten(attributes: Attributes, x: Array) -> Array:
    axis = attributes["axis"]
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Squeeze")
def squeeze(attributes: Attributes, x: Array, axes: Any = None) -> Array:
    given = attributes.get("axes") if axes is None else ints(axes)
    return jnp.squeeze(x, None if given is None else tuple(given))


@op("Unsqueeze")
def unsqueeze(attributes: Attributes, x: Array, axes: Any = None) -> Array:
    return jnp.expand_dims(x, tuple(attributes["axes"] if axes is None else ints(axes)))


@op("Transpose")
def transpose(attributes: Attributes, x: Array) -> Array:
    return jnp.transpose(x, attributes.get("perm"))


@op("Expand")
def expand(attributes: Attributes, x: Array, sizes: Any) -> Array:
    return jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, tuple(ints(sizes))))


@op("Tile")
def tile(attributes: Attributes, x: Array, repeats: Any) -> Array:
    return jnp.tile(x, ints(repeats))


@op("Concat")
def concat(attributes: Attributes, *inputs: Array) -> Array:
    return jnp.concatenate(inputs, attributes["axis"])


def split_along(x: Array, sizes: list[int], axis: int) -> list[Array]:
    """Return parts of the given sizes along an axis."""
    ends = list(np.cumsum(sizes)) if all(isinstance(n, int) for n in sizes) else None
    parts: list[Array] = jnp.split(x, ends[:-1] if ends is not None else len(sizes), axis)
    return parts


@op("Split")
def split(attributes: Attributes, x: Array, sizes: Any = None) -> tuple[Array, ...]:
    axis = attributes["axis"]
    given = None if sizes is None else ints(sizes)
    return tuple(split_along(x, split_sizes(attributes, x.shape[axis], given), axis))


@op("Slice")
def slice_(
    attributes: Attributes, x: Array, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Array:
    given = [None if v is None else ints(v) for v in (starts, ends, axes, steps)]
    index = [slice(None)] * x.ndim
    for axis, start, end, step in slices(attributes, x.shape, *given):
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


@op("Pad")
def pad(attributes: Attributes, x: Array, pads: Any = None, value: Any = None, axes: Any = None) -> Array:
    before, after = pad_amounts(attributes, x.ndim, *(None if v is None else ints(v) for v in (pads, axes)))
    mode = attributes.get("mode", "constant")
    if mode == "constant":
        fill = jnp.zeros((), x.dtype) if value is None else value.reshape(()).astype(x.dtype)
        return lax.pad(x, fill, [(b, a, 0) for b, a in zip(before, after, strict=True)])
    for axis in range(x.ndim):
        # Negative pads crop first: what is repeated comes from the part that remains.
        x = lax.slice_in_dim(x, max(-before[axis], 0), x.shape[axis] - max(-after[axis], 0), axis=axis)
        left, right = max(before[axis], 0), max(after[axis], 0)
        if left or right:
            places = np.arange(-left, x.shape[axis] + right)
            x = jnp.take(x, mirrored(places, x.shape[axis], mode), axis)
    return x


@op("DepthToSpace")
def depth_to_space(attributes: Attributes, x: Array) -> Array:
    return _moved(x, shapes.depth_to_space(attributes, x.shape))


@op("SpaceToDepth")
def space_to_depth(attributes: Attributes, x: Array) -> Array:
    return _moved(x, shapes.space_to_depth(attributes, x.shape))


def _moved(x: Array, blocks: shapes.Blocks) -> Array:
    return x.reshape(blocks.split).transpose(blocks.order).reshape(blocks.joined)


@op("Trilu")
def trilu(attributes: Attributes, x: Array, k: Any = None) -> Array:
    diagonal = 0 if k is None else int(number(k))
    return jnp.triu(x, diagonal) if attributes["upper"] else jnp.tril(x, diagonal)


@op("OneHot")
def one_hot(attributes: Attributes, indices: Array, depth: Any, values: Array) -> Array:
    count, axis = int(number(depth)), attributes["axis"]
    place = indices.astype(jnp.int64)
    where = jnp.expand_dims(jnp.where(place < 0, place + count, place), axis)  # outside of ±depth: no match
    classes = jnp.arange(count).reshape(along(axis, indices.ndim + 1))
    return jnp.where(where == classes, values[1], values[0])
