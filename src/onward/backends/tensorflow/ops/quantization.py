"""Quantised tensors, in the arithmetic of the standard: scale, zero point, rounding half to even, saturation."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from onward.backends.graph.shapes import along
from onward.backends.tensorflow.framework import shape_of
from onward.backends.tensorflow.ops.convolution import conv
from onward.backends.tensorflow.ops.elementwise import is_few_bits, largest_of
from onward.backends.tensorflow.ops.linalg import mat_mul
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import is_float, tf_type


def _along(value: tf.Tensor, x: tf.Tensor, attributes: Attributes) -> tf.Tensor:
    """Return a scale or zero point, one number or one per channel or block, in a shape that broadcasts with `x`."""
    block, rank = attributes.get("block_size", 0), x.shape.rank
    if value.shape.rank == 0 or (value.shape.num_elements() == 1 and value.shape.rank <= 1):
        return tf.reshape(value, [])
    axis = attributes.get("axis", 1) % rank
    if block and value.shape.rank == rank:
        wide = value if is_float(value) else tf.cast(value, tf.int64)
        return tf.repeat(wide, block, axis)[(*[slice(None)] * axis, slice(0, shape_of(x)[axis]))]
    return tf.reshape(value, along(axis, rank))


def _at_least_32_bits(dtype: tf.DType) -> tf.DType:
    return dtype if dtype == tf.float64 else tf.float32


def _rounded(y: tf.Tensor, wanted: tf.DType) -> tf.Tensor:
    return tf.cast(tf.cast(tf.clip_by_value(y, wanted.min, wanted.max), tf.int64), wanted)


@op("QuantizeLinear")
def quantize_linear(attributes: Attributes, x: tf.Tensor, scale: tf.Tensor, zero: tf.Tensor | None = None) -> tf.Tensor:
    wanted = zero.dtype if zero is not None else tf.uint8
    if zero is None and attributes.get("output_dtype", 0):
        wanted = tf_type(attributes["output_dtype"])
    precision = attributes.get("precision", 0)
    wide = tf_type(precision) if precision else _at_least_32_bits(scale.dtype)
    y = tf.cast(x, wide) / tf.cast(_along(scale, x, attributes), wide)
    if is_few_bits(wanted):
        most = largest_of(wanted)
        return tf.cast(tf.clip_by_value(y, -most, most) if attributes.get("saturate", 1) else y, wanted)
    y = tf.round(y)
    if zero is not None:
        y = y + tf.cast(_along(zero, x, attributes), wide)
    return _rounded(y, wanted)


@op("DequantizeLinear")
def dequantize_linear(
    attributes: Attributes, x: tf.Tensor, scale: tf.Tensor, zero: tf.Tensor | None = None
) -> tf.Tensor:
    wide = _at_least_32_bits(scale.dtype)
    whole = wide if is_float(x) else tf.int64
    values = tf.cast(x, whole)
    if zero is not None:
        values = values - tf.cast(_along(zero, x, attributes), whole)
    y = tf.cast(values, wide) * tf.cast(_along(scale, x, attributes), wide)
    return tf.cast(y, tf_type(attributes["output_dtype"]) if attributes.get("output_dtype", 0) else scale.dtype)


def _shifted(x: tf.Tensor, zero: tf.Tensor | None, axis: int | None = None) -> tf.Tensor:
    """Return x minus its zero point, in float64, which is exact for sums of products of 8-bit numbers."""
    wide = tf.cast(x, tf.float64)
    if zero is None:
        return wide
    shift = tf.cast(zero, tf.float64)
    if shift.shape.num_elements() == 1:
        return wide - tf.reshape(shift, [])
    if shift.shape.rank == 1 and axis is not None:
        shift = tf.reshape(shift, along(axis, x.shape.rank))
    return wide - shift


@op("MatMulInteger")
def matmul_integer(
    attributes: Attributes, a: tf.Tensor, b: tf.Tensor, a_zero: tf.Tensor | None = None,
    b_zero: tf.Tensor | None = None,
) -> tf.Tensor:  # fmt: skip
    exact = mat_mul(attributes, _shifted(a, a_zero, a.shape.rank - 2), _shifted(b, b_zero, b.shape.rank - 1))
    return tf.cast(exact, tf.int32)


def _conv(attributes: Attributes, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Return a convolution of an image in ONNX's order."""
    rank = x.shape.rank
    y = conv(attributes, tf.transpose(x, [0, *range(2, rank), 1]), w)
    return tf.transpose(y, [0, rank - 1, *range(1, rank - 1)])


@op("ConvInteger")
def conv_integer(
    attributes: Attributes, x: tf.Tensor, w: tf.Tensor, x_zero: tf.Tensor | None = None,
    w_zero: tf.Tensor | None = None,
) -> tf.Tensor:  # fmt: skip
    return tf.cast(_conv(attributes, _shifted(x, x_zero), _shifted(w, w_zero, 0)), tf.int32)


def _requantized(exact: tf.Tensor, factor: Any, scale: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
    y = tf.round(exact * factor / tf.cast(scale, tf.float64)) + tf.cast(zero, tf.float64)
    return _rounded(y, zero.dtype)


@op("QLinearMatMul")
def qlinear_matmul(
    attributes: Attributes, a: tf.Tensor, a_scale: tf.Tensor, a_zero: tf.Tensor, b: tf.Tensor, b_scale: tf.Tensor,
    b_zero: tf.Tensor, y_scale: tf.Tensor, y_zero: tf.Tensor,
) -> tf.Tensor:  # fmt: skip
    exact = mat_mul(attributes, _shifted(a, a_zero, a.shape.rank - 2), _shifted(b, b_zero, b.shape.rank - 1))
    return _requantized(exact, tf.cast(a_scale, tf.float64) * tf.cast(b_scale, tf.float64), y_scale, y_zero)


@op("QLinearConv")
def qlinear_conv(
    attributes: Attributes, x: tf.Tensor, x_scale: tf.Tensor, x_zero: tf.Tensor, w: tf.Tensor, w_scale: tf.Tensor,
    w_zero: tf.Tensor, y_scale: tf.Tensor, y_zero: tf.Tensor, bias: tf.Tensor | None = None,
) -> tf.Tensor:  # fmt: skip
    exact = _conv(attributes, _shifted(x, x_zero), _shifted(w, w_zero, 0))
    channel = along(1, exact.shape.rank)
    if bias is not None:
        exact = exact + tf.reshape(tf.cast(bias, tf.float64), channel)
    scale = tf.cast(w_scale, tf.float64)
    factor = tf.cast(x_scale, tf.float64) * tf.reshape(scale, [] if scale.shape.num_elements() == 1 else channel)
    return _requantized(exact, factor, y_scale, y_zero)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(attributes: Attributes, x: tf.Tensor) -> Any:
    low, high = tf.minimum(tf.reduce_min(x), 0), tf.maximum(tf.reduce_max(x), 0)
    scale = (high - low) / 255
    scale = tf.where(scale == 0, tf.ones_like(scale), scale)
    zero = tf.round(tf.clip_by_value(-low / scale, 0, 255))
    y = tf.cast(tf.clip_by_value(tf.round(x / scale) + zero, 0, 255), tf.uint8)
    return y, scale, tf.cast(zero, tf.uint8)
