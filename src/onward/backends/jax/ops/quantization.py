"""Quantised tensors, in the arithmetic of the standard: scale, zero point, rounding half to even, saturation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onward.backends.graph.shapes import along
from onward.backends.jax.ops.convolution import conv
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, is_float, jax_type


def _along(value: Array, x: Array, attributes: Attributes) -> Array:
    """Return a scale or zero point, one number or one per channel or block, in a shape that broadcasts with `x`."""
    block = attributes.get("block_size", 0)
    if value.ndim == 0 or (value.size == 1 and value.ndim <= 1):
        return value.reshape(())
    axis = attributes.get("axis", 1) % x.ndim
    if block and value.ndim == x.ndim:
        return jax.lax.slice_in_dim(jnp.repeat(value, block, axis), 0, x.shape[axis], axis=axis)
    return value.reshape(along(axis, x.ndim))


def _divided(x: Array, scale: Array) -> Array:
    """Return x / scale to the last bit, which decides a rounding: XLA multiplies by the inverse of one number."""
    return (x.astype(jnp.float64) / scale.astype(jnp.float64)).astype(x.dtype)


def _saturated(y: Array, wanted: np.dtype) -> Array:
    limits = jnp.iinfo(wanted)
    return jnp.clip(y, int(limits.min), int(limits.max)).astype(jnp.int64).astype(wanted)


@op("QuantizeLinear")
def quantize_linear(attributes: Attributes, x: Array, scale: Array, zero: Array | None = None) -> Array:
    wanted = zero.dtype if zero is not None else np.dtype(np.uint8)
    if zero is None and attributes.get("output_dtype", 0):
        wanted = jax_type(attributes["output_dtype"])
    precision = attributes.get("precision", 0)
    wide = jax_type(precision) if precision else jnp.promote_types(scale.dtype, jnp.float32)
    y = _divided(x.astype(wide), _along(scale, x, attributes).astype(wide))
    if jnp.issubdtype(wanted, jnp.floating):
        largest = float(jnp.finfo(wanted).max)
        return jnp.clip(y, -largest, largest).astype(wanted) if attributes.get("saturate", 1) else y.astype(wanted)
    y = jnp.round(y)
    if zero is not None:
        y = y + _along(zero, x, attributes).astype(wide)
    return _saturated(y, wanted)


@op("DequantizeLinear")
def dequantize_linear(attributes: Attributes, x: Array, scale: Array, zero: Array | None = None) -> Array:
    wide = jnp.promote_types(scale.dtype, jnp.float32)
    exact = wide if is_float(x) else jnp.int64
    values = x.astype(exact)
    if zero is not None:
        values = values - _along(zero, x, attributes).astype(exact)
    y = values.astype(wide) * _along(scale, x, attributes).astype(wide)
    return y.astype(jax_type(attributes["output_dtype"]) if attributes.get("output_dtype", 0) else scale.dtype)


def _shifted(x: Array, zero: Array | None, axis: int | None = None) -> Array:
    """Return x minus its zero point, in float64, which is exact for sums of products of 8-bit numbers."""
    exact = x.astype(jnp.float64)
    if zero is None:
        return exact
    shift = zero.astype(jnp.float64)
    if shift.ndim == 1 and shift.size > 1 and axis is not None:
        shift = shift.reshape(along(axis, x.ndim))
    return exact - (shift if shift.size > 1 else shift.reshape(()))


@op("MatMulInteger")
def matmul_integer(
    attributes: Attributes, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return (_shifted(a, a_zero, a.ndim - 2) @ _shifted(b, b_zero, b.ndim - 1)).astype(jnp.int32)


@op("ConvInteger")
def conv_integer(
    attributes: Attributes, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    return conv(attributes, _shifted(x, x_zero), _shifted(w, w_zero, 0)).astype(jnp.int32)


def _requantized(exact: Array, factor: Any, scale: Array, zero: Array) -> Array:
    return _saturated(jnp.round(exact * factor / scale.astype(jnp.float64)) + zero.astype(jnp.float64), zero.dtype)


@op("QLinearMatMul")
def qlinear_matmul(
    attributes: Attributes, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array,
    y_scale: Array, y_zero: Array,
) -> Array:  # fmt: skip
    exact = _shifted(a, a_zero, a.ndim - 2) @ _shifted(b, b_zero, b.ndim - 1)
    return _requantized(exact, a_scale.astype(jnp.float64) * b_scale.astype(jnp.float64), y_scale, y_zero)


@op("QLinearConv")
def qlinear_conv(
    attributes: Attributes, x: Array, x_scale: Array, x_zero: Array, w: Array, w_scale: Array, w_zero: Array,
    y_scale: Array, y_zero: Array, bias: Array | None = None,
) -> Array:  # fmt: skip
    exact = conv(attributes, _shifted(x, x_zero), _shifted(w, w_zero, 0))
    if bias is not None:
        exact = exact + bias.astype(jnp.float64).reshape(along(1, exact.ndim))
    scale = w_scale.astype(jnp.float64)
    factor = x_scale.astype(jnp.float64) * scale.reshape(along(1, exact.ndim) if scale.size > 1 else ())
    return _requantized(exact, factor, y_scale, y_zero)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(attributes: Attributes, x: Array) -> Any:
    low, high = jnp.minimum(jnp.min(x), 0), jnp.maximum(jnp.max(x), 0)
    scale = (high - low) / 255
    scale = jnp.where(scale == 0, 1, scale)
    zero = jnp.round(jnp.clip(_divided(-low, scale), 0, 255))
    y = jnp.clip(jnp.round(_divided(x, scale)) + zero, 0, 255).astype(jnp.uint8)
    return y, scale, zero.astype(jnp.uint8)
