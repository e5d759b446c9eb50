"""Resampling of images: Resize, Upsample, GridSample, AffineGrid, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from onward.backends.graph import on_numpy
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


@op("GridSample", since=16)
def grid_sample(attributes: Attributes, x: tf.Tensor, grid: tf.Tensor) -> tf.Tensor:
    """Read `x` at the points of `grid`: each axis from -1 to 1, the last axis of the image first."""
    if not is_float(x):
        return tf.cast(tf.round(grid_sample(attributes, tf.cast(x, tf.float64), grid)), x.dtype)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attributes["mode"], attributes["mode"])
    padding, corners = attributes.get("padding_mode", "zeros"), bool(attributes.get("align_corners", 0))
    n, _, *sizes = shape_of(x)
    rank, grid = len(sizes), tf.cast(grid, x.dtype)
    if mode == "cubic" and rank != 2:
        raise ValueError("cubic interpolation is for images with two spatial axes")
    points = []
    for axis, size in enumerate(sizes):
        point = grid[..., rank - 1 - axis]
        point = (point + 1) / 2 * (size - 1) if corners else ((point + 1) * size - 1) / 2
        points.append(point if mode == "cubic" else _inside(point, size, padding, corners))
    taps = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[mode]
    pixels = tf.transpose(x, [0, *range(2, 2 + rank), 1])
    samples = tf.reshape(tf.range(n, dtype=tf.int64), along(0, rank + 1)) + tf.zeros_like(points[0], tf.int64)
    result: Any = 0
    for chosen in itertools.product(*(taps(p) for p in points)):
        index, weight, within = [samples], tf.ones_like(points[0]), tf.ones_like(points[0], tf.bool)
        for (place, share), size in zip(chosen, sizes, strict=True):
            if mode == "cubic":
                place = _inside(place, size, padding, corners)
            within = within & (place >= 0) & (place <= size - 1)
            index.append(tf.cast(tf.clip_by_value(place, 0, size - 1), tf.int64))
            weight = weight * share
        read = tf.gather_nd(pixels, tf.stack(index, -1))
        result = result + read * tf.where(within, weight, tf.zeros_like(weight))[..., None]
    return tf.transpose(result, [0, rank + 1, *range(1, rank + 1)])


@op("AffineGrid", since=20)
def affine_grid(attributes: Attributes, theta: tf.Tensor, size: Any) -> tf.Tensor:
    """The standard's body squeezes all axes of size 1, and so fails for a batch of one."""
    points = on_numpy.affine_points(ints(size)[2:], bool(attributes.get("align_corners", 0)))
    return tf.einsum("...p,nqp->n...q", tf.cast(points, theta.dtype), theta)


def _inside(point: tf.Tensor, size: int, padding: str, corners: bool) -> tf.Tensor:
    """Return where a point outside of the image is read."""
    first, last = tf.zeros_like(point), tf.zeros_like(point) + (size - 1)
    if padding == "border":
        return tf.where(point < 0, first, tf.where(point > size - 1, last, point))
    if padding != "reflection":
        return point
    low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
    if not span:
        return first
    away = tf.abs(point - low)
    turns = tf.floor(away / span)
    rest = away - turns * span
    back = low + tf.where(tf.cast(turns, tf.int64) % 2 == 0, rest, span - rest)
    return tf.where(back < 0, first, tf.where(back > size - 1, last, back))


def _nearest(point: tf.Tensor) -> list[tuple[tf.Tensor, Any]]:
    return [(tf.stop_gradient(tf.round(point)), 1)]


def _linear(point: tf.Tensor) -> list[tuple[tf.Tensor, Any]]:
    low = tf.floor(tf.stop_gradient(point))
    return [(low, 1 - (point - low)), (low + 1, point - low)]


def _cubic(point: tf.Tensor) -> list[tuple[tf.Tensor, Any]]:
    a, low = -0.75, tf.floor(tf.stop_gradient(point))
    taps = []
    for offset in (-1, 0, 1, 2):
        t = tf.abs(point - low - offset)
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((t - 5) * t + 8) * t * a - 4 * a
        taps.append((low + offset, near if offset in (0, 1) else far))
    return taps


@op("RoiAlign", since=10)
def roi_align(attributes: Attributes, x: tf.Tensor, rois: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    height, width = attributes["output_height"], attributes["output_width"]
    ratio, scale = attributes.get("sampling_ratio", 0), attributes.get("spatial_scale", 1.0)
    shifted = attributes.opset >= 16 and attributes.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    results = []
    for index in range(int(number(sized([shape_of(rois)[0]])))):
        x1, y1, x2, y2 = tf.unstack(rois[index] * scale - (0.5 if shifted else 0.0))
        w, h = x2 - x1, y2 - y1
        if not shifted:
            w, h = tf.maximum(w, 1), tf.maximum(h, 1)
        counts = [
            ratio if ratio > 0 else max(math.ceil(float(concrete(n)) / into), 1)
            for n, into in ((h, height), (w, width))
        ]
        steps_y, steps_x = (tf.cast((np.arange(n) + 0.5) / n, x.dtype) for n in (height * counts[0], width * counts[1]))
        corners = _bilinear(tf.gather(x, batch[index]), y1 + steps_y * h, x1 + steps_x * w)
        shape = [-1, height, counts[0], width, counts[1]]
        if attributes.get("mode", "avg") == "avg":
            results.append(tf.reduce_mean(tf.reshape(tf.add_n(corners), shape), [2, 4]))
        else:
            results.append(tf.reduce_max(tf.reshape(tf.reduce_max(tf.stack(corners), 0), shape), [2, 4]))
    return tf.stack(results) if results else tf.zeros(sized([0, shape_of(x)[1], height, width]), x.dtype)


def _bilinear(image: tf.Tensor, y: tf.Tensor, x: tf.Tensor) -> list[tf.Tensor]:
    """Return the four corners around each point of a grid, times their weights."""
    h, w = shape_of(image)[1:]
    inside = ((y >= -1) & (y <= h))[:, None] & ((x >= -1) & (x <= w))
    y, x = tf.clip_by_value(y, 0, h - 1), tf.clip_by_value(x, 0, w - 1)
    top, left = (tf.floor(tf.stop_gradient(v)) for v in (y, x))
    ly, lx = (y - top)[:, None], x - left
    rows = [tf.cast(v, tf.int64) for v in (top, tf.minimum(top + 1, h - 1))]
    columns = [tf.cast(v, tf.int64) for v in (left, tf.minimum(left + 1, w - 1))]
    corners = [tf.gather(tf.gather(image, r, axis=1), c, axis=2) for r in rows for c in columns]
    weights = [(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx]
    return [c * (k * tf.cast(inside, k.dtype)) for c, k in zip(corners, weights, strict=True)]


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
