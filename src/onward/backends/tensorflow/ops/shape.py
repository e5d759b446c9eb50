"""Shapes: reshape, slice, pad, join, repeat, and the values made from shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from onward.backends.graph import shapes
from onward.backends.graph.common import register_shapes
from onward.backends.graph.host import Host
from onward.backends.graph.shapes import along, mirrored, pad_amounts, reshaped, slices, split_sizes
from onward.backends.tensorflow.framework import (
    TENSORFLOW,
    ints,
    is_symbol,
    known_ints,
    number,
    shape_of,
    sized,
    unknown,
)
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import tf_type

register_shapes(TENSORFLOW)
_FAR = 2**31 - 1


@op("ConstantOfShape")
def constant_of_shape(attributes: Attributes, sizes: Any) -> tf.Tensor:
    value = attributes.get("value")
    fill = tf.zeros([]) if value is None else tf.reshape(value, [])
    return tf.fill(sized(ints(sizes)), fill)


@op("Range")
def range_(attributes: Attributes, start: Any, limit: Any, delta: Any) -> tf.Tensor:
    dtype = tf.as_dtype(start.dtype)
    wide = tf.int32 if dtype == tf.int16 else dtype
    given = [v.values[0] if isinstance(v, Host) else v for v in (start, limit, delta)]
    # TensorFlow refuses a range that points away from its end; it is empty.
    if any(is_symbol(v) for v in given):
        first, last, by = (tf.cast(v, wide) for v in given)
        last = tf.where(tf.equal(last > first, by > 0), last, first)
    else:
        first, last, by = (number(v) for v in (start, limit, delta))
        last = last if (last > first) == (by > 0) else first
    return tf.cast(tf.range(*(tf.cast(v, wide) for v in (first, last, by))), dtype)


@op("EyeLike")
def eye_like(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    dtype = tf_type(attributes["dtype"]) if "dtype" in attributes else x.dtype
    rows, columns = (tf.range(n) for n in shape_of(x))
    return tf.cast(columns - tf.expand_dims(rows, 1) == attributes.get("k", 0), dtype)


@op("Reshape")
def reshape(attributes: Attributes, x: tf.Tensor, sizes: Any = None) -> tf.Tensor:
    wanted = attributes["shape"] if sizes is None else ints(sizes)
    return tf.reshape(x, sized(reshaped(attributes, shape_of(x), wanted)))


@op("Flatten")
def flatten(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    sizes, axis = shape_of(x), attributes["axis"]
    axis = axis + len(sizes) if axis < 0 else axis
    return tf.reshape(x, sized([math.prod(sizes[:axis]), math.prod(sizes[axis:])]))


@op("Squeeze")
def squeeze(attributes: Attributes, x: tf.Tensor, axes: Any = None) -> tf.Tensor:
    given = attributes.get("axes") if axes is None else known_ints(axes)
    return tf.squeeze(x, None if given is None else [a % x.shape.rank for a in given])


@op("Unsqueeze")
def unsqueeze(attributes: Attributes, x: tf.Tensor, axes: Any = None) -> tf.Tensor:
    given = attributes["axes"] if axes is None else known_ints(axes)
    for axis in sorted(a % (x.shape.rank + len(given)) for a in given):
        x = tf.expand_dims(x, axis)
    return x


@op("Transpose")
def transpose(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    """Register Transpose as supported; the layout rules only note the new order of axes."""
    raise AssertionError("the layout rules run Transpose")


@op("Expand")
def expand(attributes: Attributes, x: tf.Tensor, sizes: Any) -> tf.Tensor:
    old, wanted = shape_of(x), ints(sizes)
    rank = max(len(old), len(wanted))
    pairs = list(zip([1] * (rank - len(old)) + old, [1] * (rank - len(wanted)) + wanted, strict=True))
    if any((is_symbol(n) and (is_symbol(m) or m != 1)) or (is_symbol(m) and n != 1) for n, m in pairs):
        return tf.broadcast_to(x, tf.broadcast_dynamic_shape(tf.shape(x, tf.int64), tf.cast(sized(wanted), tf.int64)))
    return tf.broadcast_to(x, sized([m if not is_symbol(n) and n == 1 else n for n, m in pairs]))


@op("Tile")
def tile(attributes: Attributes, x: tf.Tensor, repeats: Any) -> tf.Tensor:
    if x.dtype == tf.uint16:  # no kernel
        return tf.cast(tf.tile(tf.cast(x, tf.int32), sized(ints(repeats))), x.dtype)
    return tf.tile(x, sized(ints(repeats)))


@op("Concat")
def concat(attributes: Attributes, *inputs: tf.Tensor) -> tf.Tensor:
    return tf.concat(inputs, attributes["axis"])


@op("Split")
def split(attributes: Attributes, x: tf.Tensor, sizes: Any = None) -> tuple[tf.Tensor, ...]:
    axis = attributes["axis"] % x.shape.rank
    parts = split_sizes(attributes, shape_of(x)[axis], None if sizes is None else ints(sizes))
    if len(parts) == 1:
        return (x,)
    return tuple(tf.split(x, sized(parts), axis, num=len(parts)))


def _limit(value: Any) -> Any:
    """Return a limit of a slice as TensorFlow takes it: of 32 bits."""
    if value is None:
        return None
    if is_symbol(value):
        return tf.cast(tf.clip_by_value(value, -_FAR, _FAR), tf.int32)
    return min(max(value, -_FAR), _FAR)


@op("Slice")
def slice_(
    attributes: Attributes, x: tf.Tensor, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> tf.Tensor:
    limits = [None if v is None else ints(v) for v in (starts, ends)]
    given = [*limits, *(None if v is None else known_ints(v) for v in (axes, steps))]
    where = [slice(None)] * x.shape.rank
    for axis, start, end, step in slices(attributes, shape_of(x), *given):
        where[axis] = slice(_limit(start), _limit(end), _limit(step))
    return x[tuple(where)]


@op("Pad")
def pad(attributes: Attributes, x: tf.Tensor, pads: Any = None, value: Any = None, axes: Any = None) -> tf.Tensor:
    rank, mode = x.shape.rank, attributes.get("mode", "constant")
    given = None if pads is None else ints(pads)
    amounts = pad_amounts(attributes, rank, given, None if axes is None else known_ints(axes))
    sides = list(zip(*amounts, strict=True))
    if any(is_symbol(v) for pair in sides for v in pair):
        if mode != "constant":
            raise unknown("the pads depend on data")
        return _constant_pad(x, sides, value, attributes)
    # Negative pads crop first: what is repeated comes from the part that remains.
    x = x[tuple(slice(max(-b, 0), -max(-a, 0) or None) for b, a in sides)]
    sides = [(max(b, 0), max(a, 0)) for b, a in sides]
    if mode == "constant":
        return _constant_pad(x, sides, value, attributes)
    for axis, (before, after) in enumerate(sides):
        if before or after:
            size = shape_of(x)[axis]
            x = tf.gather(x, mirrored(tf.range(-before, size + after, dtype=tf.int64), size, mode), axis=axis)
    return x


def _constant_pad(x: tf.Tensor, sides: list[tuple[Any, Any]], value: Any, attributes: Attributes) -> tf.Tensor:
    flat = tf.reshape(sized([v for pair in sides for v in pair]), [-1, 2])
    if value is None:
        fill = attributes.get("value", 0.0)
        return tf.pad(x, flat, constant_values=tf.cast(fill, x.dtype)) if fill else tf.pad(x, flat)
    mask = tf.pad(tf.ones_like(x, tf.bool), flat)
    return tf.where(mask, tf.pad(x, flat), tf.cast(tf.reshape(TENSORFLOW.tensor(value), []), x.dtype))


@op("DepthToSpace")
def depth_to_space(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return _moved(x, shapes.depth_to_space(attributes, shape_of(x)))


@op("SpaceToDepth")
def space_to_depth(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return _moved(x, shapes.space_to_depth(attributes, shape_of(x)))


def _moved(x: tf.Tensor, blocks: shapes.Blocks) -> tf.Tensor:
    return tf.reshape(tf.transpose(tf.reshape(x, sized(blocks.split)), blocks.order), sized(blocks.joined))


@op("Trilu")
def trilu(attributes: Attributes, x: tf.Tensor, k: Any = None) -> tf.Tensor:
    diagonal = 0 if k is None else ints(k)[0]
    rows, columns = (tf.range(n, dtype=tf.int64) if is_symbol(n) else np.arange(n) for n in shape_of(x)[-2:])
    away = columns - tf.expand_dims(rows, 1)
    inside = away >= diagonal if attributes["upper"] else away <= diagonal
    return tf.where(inside, x, tf.zeros_like(x))


@op("OneHot")
def one_hot(attributes: Attributes, indices: tf.Tensor, depth: Any, values: tf.Tensor) -> tf.Tensor:
    count, rank = ints(depth)[0], indices.shape.rank + 1
    axis = attributes["axis"] % rank
    place = tf.cast(indices, tf.int64)
    where = tf.expand_dims(tf.where(place < 0, place + count, place), axis)  # outside of ±depth: no match
    classes = tf.reshape(tf.range(count, dtype=tf.int64), along(axis, rank))
    return tf.where(where == classes, values[1], values[0])
