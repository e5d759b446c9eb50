"""Resampling of images: Resize, Upsample, GridSample, AffineGrid, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph import on_numpy
from onward.backends.graph.resize import NewAxis, resized, upsampled
from onward.backends.graph.shapes import along
from onward.backends.jax.framework import JAX, concrete, ints, number
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, is_float


@op("Resize", since=11)
def resize(attributes: Attributes, x: Array, roi: Any = None, scales: Any = None, sizes: Any = None) -> Array:
    changes = resized(JAX, attributes, x.shape, roi, scales, sizes)
    return _resample(x, changes, attributes.get("extrapolation_value", 0.0))


@op("Upsample", since=7)
def upsample(attributes: Attributes, x: Array, scales: Any = None) -> Array:
    return _resample(x, upsampled(JAX, attributes, x.shape, scales))


def _resample(x: Array, changes: Iterable[NewAxis], fill: float = 0.0) -> Array:
    """Return `x` with some axes replaced."""
    outside = np.zeros([1] * x.ndim, bool)
    wide = x if is_float(x) else x.astype(jnp.float64)
    for axis, matrix, missing in changes:
        wide = jnp.moveaxis(jnp.tensordot(wide, matrix.astype(wide.dtype), ([axis], [1])), -1, axis)
        outside = outside | missing.reshape(along(axis, x.ndim))
    if outside.any():
        wide = jnp.where(outside, fill, wide)
    return wide if is_float(x) else jnp.round(wide).astype(x.dtype)


@op("GridSample", since=16)
def grid_sample(attributes: Attributes, x: Array, grid: Array) -> Array:
    """Read `x` at the points of `grid`: each axis from -1 to 1, the last axis of the image first."""
    if not is_float(x):
        return jnp.round(grid_sample(attributes, x.astype(jnp.float64), grid)).astype(x.dtype)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attributes["mode"], attributes["mode"])
    padding, corners = attributes.get("padding_mode", "zeros"), bool(attributes.get("align_corners", 0))
    sizes, grid = x.shape[2:], grid.astype(x.dtype)
    if mode == "cubic" and len(sizes) != 2:
        raise ValueError("cubic interpolation is for images with two spatial axes")
    points = []
    for axis, size in enumerate(sizes):
        point = grid[..., len(sizes) - 1 - axis]
        point = (point + 1) / 2 * (size - 1) if corners else ((point + 1) * size - 1) / 2
        points.append(point if mode == "cubic" else _inside(point, size, padding, corners))
    taps = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[mode]
    result: Any = 0
    for chosen in itertools.product(*(taps(p) for p in points)):
        index, weight, within = [], jnp.ones_like(points[0]), jnp.ones(points[0].shape, bool)
        for (place, share), size in zip(chosen, sizes, strict=True):
            if mode == "cubic":
                place = _inside(place, size, padding, corners)
            within = within & (place >= 0) & (place <= size - 1)
            index.append(jnp.clip(place, 0, size - 1).astype(jnp.int64))
            weight = weight * share
        samples = np.arange(x.shape[0]).reshape(along(0, points[0].ndim))
        read = jnp.moveaxis(x[(samples, slice(None), *index)], -1, 1)
        result = result + read * jnp.where(within, weight, 0)[:, None]
    return result.astype(x.dtype)


@op("AffineGrid", since=20)
def affine_grid(attributes: Attributes, theta: Array, size: Any) -> Array:
    """The standard's body squeezes all axes of size 1, and so fails for a batch of one."""
    points = on_numpy.affine_points(ints(size)[2:], bool(attributes.get("align_corners", 0)))
    return jnp.einsum("...p,nqp->n...q", points.astype(theta.dtype), theta)


def _inside(point: Array, size: int, padding: str, corners: bool) -> Array:
    """Return where a point outside of the image is read."""
    if padding == "border":
        return jnp.where(point < 0, 0, jnp.where(point > size - 1, size - 1, point))
    if padding != "reflection":
        return point
    low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
    if not span:
        return jnp.zeros_like(point)
    away = jnp.abs(point - low)
    turns, rest = jnp.floor(away / span), jnp.fmod(away, span)
    back = low + jnp.where(turns % 2 == 0, rest, span - rest)
    return jnp.where(back < 0, 0, jnp.where(back > size - 1, size - 1, back))


def _nearest(point: Array) -> list[tuple[Array, Any]]:
    return [(lax.stop_gradient(jnp.round(point)), 1)]


def _linear(point: Array) -> list[tuple[Array, Any]]:
    low = jnp.floor(lax.stop_gradient(point))
    return [(low, 1 - (point - low)), (low + 1, point - low)]


def _cubic(point: Array) -> list[tuple[Array, Any]]:
    a, low = -0.75, jnp.floor(lax.stop_gradient(point))
    taps = []
    for offset in (-1, 0, 1, 2):
        t = jnp.abs(point - low - offset)
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((t - 5) * t + 8) * t * a - 4 * a
        taps.append((low + offset, near if offset in (0, 1) else far))
    return taps


@op("RoiAlign", since=10)
def roi_align(attributes: Attributes, x: Array, rois: Array, batch: Array) -> Array:
    height, width = attributes["output_height"], attributes["output_width"]
    ratio, scale = attributes.get("sampling_ratio", 0), attributes.get("spatial_scale", 1.0)
    shifted = attributes.opset >= 16 and attributes.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    results = []
    for index in range(rois.shape[0]):
        x1, y1, x2, y2 = rois[index] * scale - (0.5 if shifted else 0.0)
        w, h = x2 - x1, y2 - y1
        if not shifted:
            w, h = jnp.where(w < 1, 1, w), jnp.where(h < 1, 1, h)
        counts = [
            ratio if ratio > 0 else max(math.ceil(float(concrete(n)) / into), 1)
            for n, into in ((h, height), (w, width))
        ]
        steps_y, steps_x = ((jnp.arange(n) + 0.5) / n for n in (height * counts[0], width * counts[1]))
        corners = _bilinear(x[batch[index]], y1 + steps_y.astype(x.dtype) * h, x1 + steps_x.astype(x.dtype) * w)
        shape = (-1, height, counts[0], width, counts[1])
        if attributes.get("mode", "avg") == "avg":
            results.append(sum(corners[1:], corners[0]).reshape(shape).mean((2, 4)))
        else:
            results.append(jnp.stack(corners).max(0).reshape(shape).max((2, 4)))
    return jnp.stack(results) if results else jnp.zeros((0, x.shape[1], height, width), x.dtype)


def _bilinear(image: Array, y: Array, x: Array) -> list[Array]:
    """Return the four corners around each point of a grid, times their weights."""
    h, w = image.shape[1:]
    inside = ((y >= -1) & (y <= h))[:, None] & ((x >= -1) & (x <= w))
    y, x = jnp.clip(y, 0, h - 1), jnp.clip(x, 0, w - 1)
    top, left = (jnp.floor(lax.stop_gradient(v)).astype(jnp.int64) for v in (y, x))
    bottom, right = jnp.clip(top + 1, 0, h - 1), jnp.clip(left + 1, 0, w - 1)
    ly, lx = (y - top)[:, None], x - left
    corners = [image[:, r][:, :, c] for r in (top, bottom) for c in (left, right)]
    weights = [(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx]
    return [c * (k * inside) for c, k in zip(corners, weights, strict=True)]


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    attributes: Attributes, boxes: Array, scores: Array, most: Any = None, overlap: Any = None, least: Any = None
) -> Array:
    limit = 0 if most is None else int(number(most))
    threshold = 0.0 if overlap is None else float(number(overlap))
    score = None if least is None else float(number(least))
    return JAX.to_tensor(
        on_numpy.non_max_suppression(attributes, concrete(boxes), concrete(scores), limit, threshold, score)
    )
