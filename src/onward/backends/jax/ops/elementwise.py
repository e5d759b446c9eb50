"""Arithmetic, elementary functions, activations, comparisons and logic: element by element, with broadcasting.

At a kink the gradient is PyTorch's, so branches are written with `where`: `maximum` and `minimum` would halve it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph.shapes import along
from onward.backends.jax.ops.reduction import place_of_extreme
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, is_float, jax_type

_UNARY: dict[str, Callable[[Array], Array]] = {
    "Neg": jnp.negative, "Abs": jnp.abs, "Exp": jnp.exp, "Log": jnp.log, "Sqrt": jnp.sqrt, "Sin": jnp.sin,
    "Cos": jnp.cos, "Tan": jnp.tan, "Asin": jnp.arcsin, "Acos": jnp.arccos, "Atan": jnp.arctan, "Sinh": jnp.sinh,
    "Cosh": jnp.cosh, "Tanh": jnp.tanh, "Asinh": jnp.arcsinh, "Acosh": jnp.arccosh, "Atanh": jnp.arctanh,
    "Erf": lax.erf, "Floor": jnp.floor, "Ceil": jnp.ceil, "Round": jnp.round, "Sign": jnp.sign,
    "Reciprocal": lambda x: 1 / x, "Relu": jax.nn.relu, "Sigmoid": jax.nn.sigmoid, "Not": jnp.logical_not,
    "IsNaN": jnp.isnan, "Softsign": jax.nn.soft_sign, "Mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "BitwiseNot": jnp.bitwise_not, "Softplus": jax.nn.softplus,
}  # fmt: skip
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": jnp.add, "Sub": jnp.subtract, "Mul": jnp.multiply, "Equal": jnp.equal, "Greater": jnp.greater,
    "Less": jnp.less, "GreaterOrEqual": jnp.greater_equal, "LessOrEqual": jnp.less_equal, "And": jnp.logical_and,
    "Or": jnp.logical_or, "Xor": jnp.logical_xor, "BitwiseAnd": jnp.bitwise_and, "BitwiseOr": jnp.bitwise_or,
    "BitwiseXor": jnp.bitwise_xor,
}  # fmt: skip


def _register() -> None:
    for name, function in _UNARY.items():
        op(name)(lambda attributes, x, _f=function: _f(x))
    for name, binary in _BINARY.items():
        op(name)(lambda attributes, a, b, _f=binary: _f(a, b))


_register()


@op("Div")
def div(attributes: Attributes, a: Array, b: Array) -> Array:
    return a / b if is_float(a) else lax.div(*jnp.broadcast_arrays(a, b))  # integers towards zero


@op("Pow")
def pow_(attributes: Attributes, x: Array, y: Array) -> Array:
    if not is_float(x) and is_float(y):
        return jnp.power(x.astype(y.dtype), y).astype(x.dtype)
    return jnp.power(x, y.astype(x.dtype) if is_float(x) else y).astype(x.dtype)


@op("Mod")
def mod(attributes: Attributes, a: Array, b: Array) -> Array:
    return jnp.fmod(a, b) if attributes["fmod"] else jnp.remainder(a, b)


@op("BitShift")
def bit_shift(attributes: Attributes, x: Array, y: Array) -> Array:
    return jnp.left_shift(x, y) if attributes["direction"] == "LEFT" else jnp.right_shift(x, y)


def _of_all(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def run(attributes: Attributes, *inputs: Array) -> Array:
        result = inputs[0]
        for value in inputs[1:]:
            result = function(result, value)
        return result

    return run


sum_ = op("Sum")(_of_all(jnp.add))
op("Max")(_of_all(jnp.maximum))
op("Min")(_of_all(jnp.minimum))


@op("Mean")
def mean(attributes: Attributes, *inputs: Array) -> Array:
    return sum_(attributes, *inputs) / len(inputs)


@op("Where")
def where(attributes: Attributes, condition: Array, x: Array, y: Array) -> Array:
    return jnp.where(condition, x, y)


@op("IsInf")
def is_inf(attributes: Attributes, x: Array) -> Array:
    infinite = jnp.isinf(x)
    if not attributes["detect_positive"]:
        infinite = infinite & (x < 0)
    if not attributes["detect_negative"]:
        infinite = infinite & (x > 0)
    return infinite


@op("Clip")
def clip(attributes: Attributes, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    if low is not None:
        x = jnp.where(x < low, low.astype(x.dtype), x)
    return x if high is None else jnp.where(x > high, high.astype(x.dtype), x)


@op("LeakyRelu")
def leaky_relu(attributes: Attributes, x: Array) -> Array:
    return jnp.where(x > 0, x, attributes["alpha"] * x)


@op("PRelu")
def prelu(attributes: Attributes, x: Array, slope: Array) -> Array:
    return jnp.where(x < 0, x * slope, x)


def below(x: Array) -> Array:
    """Return the negative part, whose exponential does not overflow."""
    return jnp.where(x > 0, 0, x)


@op("Elu")
def elu(attributes: Attributes, x: Array) -> Array:
    return jnp.where(x > 0, x, attributes["alpha"] * jnp.expm1(below(x)))


@op("Celu")
def celu(attributes: Attributes, x: Array) -> Array:
    alpha = attributes["alpha"]
    return jnp.where(x > 0, x, alpha * jnp.expm1(below(x) / alpha))


@op("Selu")
def selu(attributes: Attributes, x: Array) -> Array:
    return attributes["gamma"] * jnp.where(x > 0, x, attributes["alpha"] * jnp.expm1(below(x)))


@op("ThresholdedRelu")
def thresholded_relu(attributes: Attributes, x: Array) -> Array:
    return jnp.where(x > attributes["alpha"], x, 0)


@op("HardSigmoid")
def hard_sigmoid(attributes: Attributes, x: Array) -> Array:
    line = attributes["alpha"] * x + attributes["beta"]
    return jnp.where(line >= 1, 1, jnp.where(line <= 0, 0, line))


@op("HardSwish")
def hard_swish(attributes: Attributes, x: Array) -> Array:
    return jnp.where(x > 3, x, jnp.where(x < -3, 0, x * (x + 3) / 6))


@op("Shrink")
def shrink(attributes: Attributes, x: Array) -> Array:
    limit, bias = attributes["lambd"], attributes["bias"]
    return jnp.where(x < -limit, x + bias, jnp.where(x > limit, x - bias, 0)).astype(x.dtype)


@op("Gelu")
def gelu(attributes: Attributes, x: Array) -> Array:
    return jax.nn.gelu(x, approximate=attributes["approximate"] == "tanh")


@op("Swish")
def swish(attributes: Attributes, x: Array) -> Array:
    return x * jax.nn.sigmoid(attributes["alpha"] * x)


@op("BitCast")
def bit_cast(attributes: Attributes, x: Array) -> Array:
    wanted = jax_type(attributes["to"])
    if wanted == jnp.bool_ or x.dtype == jnp.bool_:  # JAX has no bits of booleans; they are 0 and 1
        return x.astype(jnp.uint8).astype(wanted)
    return lax.bitcast_convert_type(x, wanted)


@op("Cast")
def cast(attributes: Attributes, x: Array) -> Array:
    return _cast(attributes, x, jax_type(attributes["to"]))


@op("CastLike")
def cast_like(attributes: Attributes, x: Array, like: Array) -> Array:
    return _cast(attributes, x, like.dtype)


def _cast(attributes: Attributes, x: Array, wanted: np.dtype) -> Array:
    if wanted.name == "float8_e8m0fnu" and x.dtype != wanted:
        return lax.bitcast_convert_type(
            _power_of_two(x.astype(jnp.float32), attributes.get("round_mode", "up")), wanted
        )
    few = jnp.issubdtype(wanted, jnp.floating) and wanted.itemsize == 1 and x.dtype != wanted
    if few and attributes.get("saturate", 1) and wanted.name != "float4_e2m1fn":
        largest = float(jnp.finfo(wanted).max)
        narrow = x.astype(jnp.float32)
        return jnp.where(jnp.isnan(narrow), narrow, jnp.clip(narrow, -largest, largest)).astype(wanted)
    if is_float(x) and jnp.issubdtype(wanted, jnp.integer):
        return x.astype(jnp.int64).astype(wanted) if wanted != jnp.uint64 else x.astype(wanted)
    return x.astype(wanted)


def _power_of_two(x: Array, mode: str) -> Array:
    """Return the bits of float8e8m0, which holds powers of two: the one above or below each number, or the nearer."""
    part, exponent = jnp.frexp(x)  # a part between 1/2 and 1
    above = part > 0.5 if mode == "up" else part >= 0.75 if mode == "nearest" else jnp.zeros_like(part, bool)
    power = jnp.where(x == 0, -127, jnp.where(above, exponent, exponent - 1))
    return jnp.where(jnp.isfinite(x), jnp.clip(power, -127, 127) + 127, 255).astype(jnp.uint8)


@op("Dropout")
def dropout(attributes: Attributes, x: Array, ratio: Any = None, training: Any = None) -> Any:
    """Return the input: a training Dropout is lowered to arithmetic before it reaches a backend."""
    return x, jnp.ones(x.shape, bool)


@op("Softmax", since=13)
def softmax(attributes: Attributes, x: Array) -> Array:
    return jax.nn.softmax(x, attributes["axis"])


@op("LogSoftmax", since=13)
def log_softmax(attributes: Attributes, x: Array) -> Array:
    return jax.nn.log_softmax(x, attributes["axis"])


@op("Softmax", "LogSoftmax", since=1)
def softmax_flat(attributes: Attributes, x: Array) -> Array:
    axis = attributes["axis"] % max(x.ndim, 1)
    flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    function = jax.nn.softmax if attributes.op_type == "Softmax" else jax.nn.log_softmax
    return function(flat, 1).reshape(x.shape)


@op("Hardmax", since=13)
def hardmax(attributes: Attributes, x: Array) -> Array:
    axis = attributes["axis"]
    places = jnp.arange(x.shape[axis]).reshape(along(axis, x.ndim))
    return (places == place_of_extreme(x, axis)).astype(x.dtype)
