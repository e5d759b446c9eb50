"""Resampling of images: Resize, Upsample, GridSample, AffineGrid, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onward.backends.graph import on_numpy, sampling
from onward.backends.graph.resize import NewAxis, resized, upsampled
from onward.backends.graph.shapes import along
from onward.backends.tensorflow.framework import (
    TENSORFLOW,
    concrete,
    ints,
    is_symbol,
    known_ints,
    number,
    shape_of,
    sized,
    unknown,
)
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import is_float, to_tensor


def _logical(attributes: Attributes, x: tf.Tensor) -> list[Any]:
    """Return the sizes in ONNX's order (the layout rules say which one `x` has); 1 for a batch of unknown size."""
    sizes, order = shape_of(x), attributes.get("order")
    sizes = sizes if order is None else [sizes[order.index(axis)] for axis in range(len(sizes))]
    if any(is_symbol(n) for n in sizes[1:]):
        raise unknown("the size of an image is not known")
    return [1, *sizes[1:]] if is_symbol(sizes[0]) else sizes


@op("Resize", since=10)
def resize_10(attributes: Attributes, x: tf.Tensor, scales: Any) -> tf.Tensor:
    return upsample(attributes, x, scales)


@op("Resize", since=11)
def resize(attributes: Attributes, x: tf.Tensor, roi: Any = None, scales: Any = None, sizes: Any = None) -> tf.Tensor:
    old = _logical(attributes, x)
    if sizes is not None:
        wanted = ints(sizes)
        stays = attributes.get("axes") is None and is_symbol(wanted[0])  # the batch
        sizes = [1, *known_ints(wanted[1:])] if stays else known_ints(sizes)
    changes = resized(TENSORFLOW, attributes, old, roi, scales, sizes)
    return _resample(attributes, x, changes, attributes.get("extrapolation_value", 0.0))


@op("Upsample", since=7)
def upsample(attributes: Attributes, x: tf.Tensor, scales: Any = None) -> tf.Tensor:
    return _resample(attributes, x, upsampled(TENSORFLOW, attributes, _logical(attributes, x), scales))


def _resample(attributes: Attributes, x: tf.Tensor, changes: Iterable[NewAxis], fill: float = 0.0) -> tf.Tensor:
    """Return `x` with some axes replaced."""
    rank, order = x.shape.rank, attributes.get("order")
    outside = np.zeros([1] * rank, bool)
    wide = x if is_float(x) else tf.cast(x, tf.float64)
    for logical, matrix, missing in changes:
        axis = logical if order is None else order.index(logical)
        kept = [a for a in range(rank) if a != axis]
        moved = tf.tensordot(wide, tf.cast(matrix, wide.dtype), [[axis], [1]])
        wide = tf.transpose(moved, [rank - 1 if a == axis else kept.index(a) for a in range(rank)])
        outside = outside | missing.reshape(along(axis, rank))
    if outside.any():
        wide = tf.where(outside, tf.cast(fill, wide.dtype), wide)
    return wide if is_float(x) else tf.cast(tf.round(wide), x.dtype)


class Sampling(sampling.GridSample, sampling.RoiAlign):
    """GridSample and RoiAlign on TensorFlow."""

    def cast(self, x: tf.Tensor, dtype: Any) -> tf.Tensor:
        return tf.cast(x, dtype)

    def floor(self, x: tf.Tensor) -> tf.Tensor:
        return tf.floor(tf.stop_gradient(x))

    def where(self, condition: tf.Tensor, number: float, x: tf.Tensor) -> tf.Tensor:
        return tf.where(condition, tf.cast(number, x.dtype), x)

    def round(self, x: tf.Tensor) -> tf.Tensor:
        return tf.round(tf.stop_gradient(x))

    def pixels(self, x: tf.Tensor, places: Sequence[tf.Tensor]) -> tf.Tensor:
        rank = len(places)
        samples = tf.reshape(tf.range(shape_of(x)[0], dtype=tf.int64), along(0, places[0].shape.rank))
        index = tf.stack([samples + tf.zeros_like(places[0]), *places], -1)
        read = tf.gather_nd(tf.transpose(x, [0, *range(2, 2 + rank), 1]), index)
        last = read.shape.rank - 1
        return tf.transpose(read, [0, last, *range(1, last)])

    def take(self, x: tf.Tensor, index: tf.Tensor, axis: int) -> tf.Tensor:
        return tf.gather(x, index, axis=axis)

    def pool(self, x: tf.Tensor, axes: tuple[int, ...], average: bool) -> tf.Tensor:
        return (tf.reduce_mean if average else tf.reduce_max)(x, axes)

    def reshape(self, x: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
        return tf.reshape(x, sizes)

    def zeros(self, sizes: Sequence[Any], like: tf.Tensor) -> tf.Tensor:
        return tf.zeros(sized(sizes), like.dtype)


op("GridSample", since=16)(Sampling(TENSORFLOW).grid_sample)
op("RoiAlign", since=10)(Sampling(TENSORFLOW).roi_align)


@op("AffineGrid", since=20)
def affine_grid(attributes: Attributes, theta: tf.Tensor, size: Any) -> tf.Tensor:
    """The standard's body squeezes all axes of size 1, and so fails for a batch of one."""
    points = on_numpy.affine_points(ints(size)[2:], bool(attributes.get("align_corners", 0)))
    return tf.einsum("...p,nqp->n...q", tf.cast(points, theta.dtype), theta)


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    attributes: Attributes, boxes: tf.Tensor, scores: tf.Tensor, most: Any = None, overlap: Any = None,
    least: Any = None,
) -> tf.Tensor:  # fmt: skip
    limit = 0 if most is None else int(number(most))
    threshold = 0.0 if overlap is None else float(number(overlap))
    score = None if least is None else float(number(least))
    return to_tensor(
        on_numpy.non_max_suppression(attributes, concrete(boxes), concrete(scores), limit, threshold, score)
    )
