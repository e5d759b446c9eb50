"""Gather, scatter and selection of elements."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from onward.backends.graph import on_numpy
from onward.backends.graph.shapes import along
from onward.backends.tensorflow.framework import concrete, shape_of, sized
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import to_tensor


def _from_the_front(indices: tf.Tensor, size: Any) -> tf.Tensor:
    indices = tf.cast(indices, tf.int64)
    return tf.where(indices < 0, indices + size, indices)


@op("Gather")
def gather(attributes: Attributes, data: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    axis = attributes["axis"] % data.shape.rank
    return tf.gather(data, _from_the_front(indices, shape_of(data)[axis]), axis=axis)


def _along(indices: tf.Tensor, axis: int) -> tf.Tensor:
    """Return [..., rank]: the index of each element, which is `indices` along `axis` and its own place elsewhere."""
    sizes = shape_of(indices)
    rank = len(sizes)
    places = [tf.reshape(tf.range(n, dtype=tf.int64), along(i, rank)) for i, n in enumerate(sizes)]
    places[axis] = indices
    return tf.stack([tf.broadcast_to(p, sized(sizes)) for p in places], -1)


@op("GatherElements")
def gather_elements(attributes: Attributes, data: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    axis = attributes["axis"] % data.shape.rank
    return tf.gather_nd(data, _along(_from_the_front(indices, shape_of(data)[axis]), axis))


@op("GatherND")
def gather_nd(attributes: Attributes, data: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    batch, depth = attributes.get("batch_dims", 0), indices.shape[-1]
    wrapped = _from_the_front(indices, tf.cast(sized(shape_of(data)[batch : batch + depth]), tf.int64))
    return tf.gather_nd(data, wrapped, batch_dims=batch)


def _write(data: tf.Tensor, index: tf.Tensor, updates: tf.Tensor, attributes: Attributes) -> tf.Tensor:
    """Return the data with `updates` at `index` [..., depth]."""
    reduction = attributes.get("reduction", "none")
    if reduction == "mul":
        return data * _products(data, index, updates)
    methods = {
        "none": tf.tensor_scatter_nd_update, "add": tf.tensor_scatter_nd_add, "max": tf.tensor_scatter_nd_max,
        "min": tf.tensor_scatter_nd_min,
    }  # fmt: skip
    return methods[reduction](data, index, updates)


def _products(data: tf.Tensor, index: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """Return the product of the updates of each element, 1 where there is none."""
    depth, sizes = index.shape[-1], shape_of(data)
    flat = tf.zeros_like(index[..., 0])
    for i in range(depth):
        flat = flat * sizes[i] + index[..., i]
    count = math.prod(sizes[:depth])
    rows = tf.reshape(updates, sized([-1, *sizes[depth:]]))
    return tf.reshape(tf.math.unsorted_segment_prod(rows, tf.reshape(flat, [-1]), count), sized(sizes))


@op("ScatterElements", "Scatter")
def scatter_elements(attributes: Attributes, data: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    axis = attributes["axis"] % data.shape.rank
    return _write(data, _along(_from_the_front(indices, shape_of(data)[axis]), axis), updates, attributes)


@op("ScatterND")
def scatter_nd(attributes: Attributes, data: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    depth = indices.shape[-1]
    index = _from_the_front(indices, tf.cast(sized(shape_of(data)[:depth]), tf.int64))
    return _write(data, index, updates, attributes)


@op("Compress")
def compress(attributes: Attributes, data: tf.Tensor, condition: tf.Tensor) -> tf.Tensor:
    chosen = tf.reshape(tf.where(condition), [-1])
    if "axis" not in attributes:
        return tf.gather(tf.reshape(data, [-1]), chosen)
    return tf.gather(data, chosen, axis=attributes["axis"] % data.shape.rank)


@op("NonZero")
def non_zero(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(tf.where(x != tf.zeros_like(x)))


@op("ReverseSequence")
def reverse_sequence(attributes: Attributes, x: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    return tf.reverse_sequence(x, lengths, seq_axis=attributes["time_axis"], batch_axis=attributes["batch_axis"])


@op("Unique")
def unique(attributes: Attributes, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return tuple(to_tensor(v) for v in on_numpy.unique(attributes, concrete(x)))


@op("TensorScatter", since=24)
def tensor_scatter(attributes: Attributes, cache: tf.Tensor, update: tf.Tensor, start: Any = None) -> tf.Tensor:
    axis, rank = attributes["axis"] % cache.shape.rank, cache.shape.rank
    sizes = shape_of(update)
    first = tf.zeros([1] * rank, tf.int64) if start is None else tf.reshape(tf.cast(start, tf.int64), along(0, rank))
    place = first + tf.reshape(tf.range(sizes[axis], dtype=tf.int64), along(axis, rank))
    if attributes.get("mode", "linear") == "circular":
        place = place % shape_of(cache)[axis]
    return tf.tensor_scatter_nd_update(cache, _along(tf.broadcast_to(place, sized(sizes)), axis), update)
