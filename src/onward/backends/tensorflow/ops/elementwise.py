"""Arithmetic, elementary functions, activations, comparisons and logic: element by element, with broadcasting.

At a kink the gradient is PyTorch's, so branches are written with `where`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onward.backends.tensorflow.framework import shape_of, sized
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import is_float, tf_type

_UNARY: dict[str, Callable[[Any], Any]] = {
    "Neg": tf.negative, "Abs": tf.abs, "Exp": tf.exp, "Log": tf.math.log, "Sqrt": tf.sqrt, "Sin": tf.sin, "Cos": tf.cos,
    "Tan": tf.tan, "Asin": tf.asin, "Acos": tf.acos, "Atan": tf.atan, "Sinh": tf.sinh, "Cosh": tf.cosh,
    "Tanh": tf.tanh, "Asinh": tf.asinh, "Acosh": tf.acosh, "Atanh": tf.atanh, "Erf": tf.math.erf, "Floor": tf.floor,
    "Ceil": tf.math.ceil, "Round": tf.round, "Sign": tf.sign, "Reciprocal": tf.math.reciprocal, "Relu": tf.nn.relu,
    "Sigmoid": tf.sigmoid, "Not": tf.logical_not, "IsNaN": tf.math.is_nan, "Softsign": tf.nn.softsign,
    "Mish": lambda x: x * tf.tanh(tf.nn.softplus(x)), "BitwiseNot": tf.bitwise.invert, "Softplus": tf.nn.softplus,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": tf.add, "Sub": tf.subtract, "Mul": tf.multiply, "Equal": tf.equal, "Greater": tf.greater, "Less": tf.less,
    "GreaterOrEqual": tf.greater_equal, "LessOrEqual": tf.less_equal, "And": tf.logical_and, "Or": tf.logical_or,
    "Xor": tf.math.logical_xor, "BitwiseAnd": tf.bitwise.bitwise_and, "BitwiseOr": tf.bitwise.bitwise_or,
    "BitwiseXor": tf.bitwise.bitwise_xor,
}  # fmt: skip
_FEW_KERNELS = (tf.int8, tf.int16, tf.uint8, tf.uint16, tf.uint32, tf.uint64)


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(attributes, *tensors)` computed in int64 for integer types with few kernels in TensorFlow.

    Results wrap around correctly, except when dividing uint64 values from 2^63 on.
    """

    def run(attributes: Attributes, *inputs: Any) -> Any:
        few = [x.dtype for x in inputs if x is not None and x.dtype in _FEW_KERNELS]
        if not few:
            return function(attributes, *inputs)
        wide = [tf.cast(x, tf.int64) if x is not None and x.dtype in _FEW_KERNELS else x for x in inputs]
        result = function(attributes, *wide)
        return tf.cast(result, few[0]) if result.dtype == tf.int64 else result

    return run


def _register() -> None:
    for name, function in _UNARY.items():
        op(name)(widened(lambda attributes, x, _f=function: _f(x)))
    for name, binary in _BINARY.items():
        op(name)(lambda attributes, a, b, _f=binary: _f(a, b))


_register()


@op("Div")
@widened
def div(attributes: Attributes, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return a / b if is_float(a) else tf.truncatediv(a, b)  # integers towards zero


@op("Pow")
@widened
def pow_(attributes: Attributes, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if not is_float(x):
        exact = tf.pow(tf.cast(x, tf.float64), tf.cast(y, tf.float64))
        return tf.cast(exact, x.dtype) if is_float(y) else tf.pow(x, tf.cast(y, x.dtype))
    known = tf.get_static_value(y)
    if known is not None and known.size == 1 and y.shape.rank <= x.shape.rank:  # the gradient at 0 is a number
        special = {0.0: tf.ones_like, 0.5: tf.sqrt, 1.0: tf.identity, 2.0: tf.square}.get(float(known.reshape(())))
        if special is not None:
            return special(x)
    return tf.pow(x, tf.cast(y, x.dtype))


@op("Mod")
@widened
def mod(attributes: Attributes, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    if attributes["fmod"] and a.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tf.truncatemod(tf.cast(a, tf.float32), tf.cast(b, tf.float32)), a.dtype)
    return tf.truncatemod(a, b) if attributes["fmod"] else tf.math.floormod(a, b)


@op("BitShift")
def bit_shift(attributes: Attributes, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    width = 8 * x.dtype.size
    far = (y < 0) | (y >= width)  # every bit leaves; TensorFlow would shift by something else
    if attributes["direction"] == "LEFT":
        return tf.where(far, tf.zeros_like(x), tf.bitwise.left_shift(x, tf.where(far, tf.zeros_like(y), y)))
    shifted = tf.bitwise.right_shift(x, tf.where(far, tf.cast(width - 1, y.dtype), y))
    return tf.where(far, tf.zeros_like(x), shifted) if x.dtype.is_unsigned else shifted


def _of_all(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(attributes: Attributes, *inputs: Any) -> Any:
        result = inputs[0]
        for value in inputs[1:]:
            result = function(result, value)
        return result

    return run


def _larger(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    if not is_float(a):
        return tf.maximum(a, b)
    return tf.where(a > b, a, tf.where(b > a, b, a * 0.5 + b * 0.5))  # equal values share the gradient


def _smaller(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    if not is_float(a):
        return tf.minimum(a, b)
    return tf.where(a < b, a, tf.where(b < a, b, a * 0.5 + b * 0.5))


sum_ = op("Sum")(_of_all(tf.add))
op("Max")(_of_all(_larger))
op("Min")(_of_all(_smaller))


@op("Mean")
def mean(attributes: Attributes, *inputs: tf.Tensor) -> tf.Tensor:
    return sum_(attributes, *inputs) / len(inputs)


@op("Where")
def where(attributes: Attributes, condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, x, y)


@op("IsInf")
def is_inf(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    infinite = tf.math.is_inf(x)
    if not attributes["detect_positive"]:
        infinite = infinite & (x < 0)
    if not attributes["detect_negative"]:
        infinite = infinite & (x > 0)
    return infinite


@op("Clip", since=6)
def clip_6(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    low, high = attributes["min"], attributes["max"]
    return clip(attributes, x, tf.cast(low, x.dtype), tf.cast(high, x.dtype))


@op("Clip", since=11)
def clip(
    attributes: Attributes, x: tf.Tensor, low: tf.Tensor | None = None, high: tf.Tensor | None = None
) -> tf.Tensor:
    if low is not None:
        x = tf.where(x < low, tf.cast(low, x.dtype), x)
    return x if high is None else tf.where(x > high, tf.cast(high, x.dtype), x)


@op("LeakyRelu")
def leaky_relu(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.leaky_relu(x, attributes["alpha"])


@op("PRelu")
@widened
def prelu(attributes: Attributes, x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    return tf.where(x <= 0, x * slope, x)


def below(x: tf.Tensor) -> tf.Tensor:
    """Return the negative part, whose exponential does not overflow."""
    return tf.where(x > 0, tf.zeros_like(x), x)


@op("Elu")
def elu(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.where(x > 0, x, attributes["alpha"] * tf.math.expm1(below(x)))


@op("Celu")
def celu(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    alpha = attributes["alpha"]
    return tf.where(x > 0, x, alpha * tf.math.expm1(below(x) / alpha))


@op("Selu")
def selu(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return attributes["gamma"] * tf.where(x > 0, x, attributes["alpha"] * tf.math.expm1(below(x)))


@op("ThresholdedRelu")
def thresholded_relu(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.where(x > attributes["alpha"], x, tf.zeros_like(x))


@op("HardSigmoid")
def hard_sigmoid(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    line = attributes["alpha"] * x + attributes["beta"]
    return tf.where(line >= 1, tf.ones_like(x), tf.where(line <= 0, tf.zeros_like(x), line))


@op("HardSwish")
def hard_swish(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.where(x >= 3, x, tf.where(x <= -3, tf.zeros_like(x), x * (x + 3) / 6))


@op("Shrink")
@widened
def shrink(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    limit, bias = attributes["lambd"], attributes["bias"]
    wide = x if is_float(x) else tf.cast(x, tf.float64)
    zero = tf.zeros_like(wide)
    return tf.cast(tf.where(wide < -limit, wide + bias, tf.where(wide > limit, wide - bias, zero)), x.dtype)


@op("Gelu")
def gelu(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    if attributes["approximate"] == "tanh":
        return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + tf.math.erf(x * math.sqrt(0.5)))


@op("Swish")
def swish(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return x * tf.sigmoid(attributes["alpha"] * x)


@op("BitCast")
def bit_cast(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    bits = tf.cast(x, tf.uint8) if x.dtype == tf.bool else x  # no kernel
    wanted = tf_type(attributes["to"])
    return tf.cast(bits, tf.bool) if wanted == tf.bool else tf.bitcast(bits, wanted)


@op("Cast")
def cast(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return _cast(attributes, x, tf_type(attributes["to"]))


@op("CastLike")
def cast_like(attributes: Attributes, x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return _cast(attributes, x, like.dtype)


def is_few_bits(dtype: tf.DType) -> bool:
    """Return whether a type is a floating-point number of 8 bits."""
    return "float8" in str(dtype.name)


def largest_of(dtype: tf.DType) -> float:
    """Return the largest finite number of a floating-point type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.as_numpy_dtype).max)


def _cast(attributes: Attributes, x: tf.Tensor, wanted: tf.DType) -> tf.Tensor:
    if x.dtype == wanted:
        return x
    if is_few_bits(x.dtype):
        x = tf.cast(x, tf.float32)
    if is_few_bits(wanted):
        narrow = tf.cast(x, tf.float32)
        if attributes.get("saturate", 1):
            most = largest_of(wanted)
            narrow = tf.where(tf.math.is_nan(narrow), narrow, tf.clip_by_value(narrow, -most, most))
        return tf.cast(narrow, wanted)
    if is_float(x) and wanted.is_integer and wanted != tf.uint64:
        return tf.cast(tf.cast(x, tf.int64), wanted)
    if wanted == tf.bool and is_float(x):
        return tf.not_equal(x, tf.zeros_like(x))
    return tf.cast(x, wanted)


@op("Dropout")
def dropout(attributes: Attributes, x: tf.Tensor, ratio: Any = None, training: Any = None) -> Any:
    """Return the input: a training Dropout is lowered to arithmetic before it reaches a backend."""
    return x, tf.ones_like(x, tf.bool)


@op("Softmax", since=13)
def softmax(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(x, attributes["axis"])


@op("LogSoftmax", since=13)
def log_softmax(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.log_softmax(x, attributes["axis"])


@op("Softmax", "LogSoftmax", since=1)
def softmax_flat(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    sizes = shape_of(x)
    axis = attributes["axis"] % max(len(sizes), 1)
    flat = tf.reshape(x, sized([math.prod(sizes[:axis]), math.prod(sizes[axis:])]))
    function = tf.nn.softmax if attributes.op_type == "Softmax" else tf.nn.log_softmax
    return tf.reshape(function(flat, 1), sized(sizes))


@op("Hardmax", since=13)
def hardmax(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    axis = attributes["axis"] % x.shape.rank
    return tf.one_hot(tf.argmax(x, axis), shape_of(x)[axis], dtype=x.dtype, axis=axis)
