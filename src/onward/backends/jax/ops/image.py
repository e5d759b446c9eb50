"""Resampling of images: Resize, Upsample, GridSample, AffineGrid, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph import on_numpy, sampling
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


class Sampling(sampling.GridSample, sampling.RoiAlign):
    """GridSample and RoiAlign on JAX."""

    def cast(self, x: Array, dtype: Any) -> Array:
        return x.astype(dtype)

    def floor(self, x: Array) -> Array:
        return jnp.floor(lax.stop_gradient(x))

    def where(self, condition: Array, number: float, x: Array) -> Array:
        return jnp.where(condition, jnp.asarray(number, x.dtype), x)

    def round(self, x: Array) -> Array:
        return jnp.round(lax.stop_gradient(x))

    def pixels(self, x: Array, places: Sequence[Array]) -> Array:
        samples = np.arange(x.shape[0]).reshape(along(0, places[0].ndim))
        return jnp.moveaxis(x[(samples, slice(None), *places)], -1, 1)

    def take(self, x: Array, index: Array, axis: int) -> Array:
        return x[(slice(None),) * axis + (index,)]

    def pool(self, x: Array, axes: tuple[int, ...], average: bool) -> Array:
        return x.mean(axes) if average else x.max(axes)

    def reshape(self, x: Array, sizes: Sequence[int]) -> Array:
        return x.reshape(sizes)

    def zeros(self, sizes: Sequence[Any], like: Array) -> Array:
        return jnp.zeros(sizes, like.dtype)


op("GridSample", since=16)(Sampling(JAX).grid_sample)
op("RoiAlign", since=10)(Sampling(JAX).roi_align)


@op("AffineGrid", since=20)
def affine_grid(attributes: Attributes, theta: Array, size: Any) -> Array:
    """The standard's body squeezes all axes of size 1, and so fails for a batch of one."""
    points = on_numpy.affine_points(ints(size)[2:], bool(attributes.get("align_corners", 0)))
    return jnp.einsum("...p,nqp->n...q", points.astype(theta.dtype), theta)


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
