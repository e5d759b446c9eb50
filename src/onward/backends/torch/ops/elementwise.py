"""Arithmetic, elementary functions, activations, comparisons and logic: element by element, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import torch_type

_UNARY = {
    "Neg": torch.neg, "Abs": torch.abs, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt, "Sin": torch.sin,
    "Cos": torch.cos, "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan, "Sinh": torch.sinh,
    "Cosh": torch.cosh, "Tanh": torch.tanh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh,
    "Erf": torch.erf, "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Not": torch.logical_not,
    "IsNaN": torch.isnan, "Softsign": F.softsign, "Mish": F.mish, "HardSwish": F.hardswish,
    "BitwiseNot": torch.bitwise_not,
}  # fmt: skip
_BINARY = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt,
    "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "And": torch.logical_and, "Or": torch.logical_or,
    "Xor": torch.logical_xor, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}  # fmt: skip


_FEW_KERNELS = (torch.uint16, torch.uint32, torch.uint64)  # PyTorch has almost no kernels for them


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function(attributes, *tensors)` computed in int64 where PyTorch has no kernels for the unsigned type.

    Results wrap around correctly, except when comparing and dividing uint64 values from 2^63 on.
    """

    def run(attributes: Attributes, *inputs: Any) -> Any:
        few = [x.dtype for x in inputs if isinstance(x, Tensor) and x.dtype in _FEW_KERNELS]
        kind = few[0] if few else None  # not next(): torch.compile of PyTorch 2.8 does not support its default
        if kind is None:
            return function(attributes, *inputs)
        wide = [x.to(torch.int64) if isinstance(x, Tensor) and x.dtype in _FEW_KERNELS else x for x in inputs]
        result = function(attributes, *wide)
        return result.to(kind) if result.dtype == torch.int64 else result

    return run


def _register() -> None:
    for name, function in _UNARY.items():
        op(name)(widened(lambda attributes, x, _f=function: _f(x)))
    for name, function in _BINARY.items():
        op(name)(widened(lambda attributes, a, b, _f=function: _f(a, b)))


_register()


@op("Div")
@widened
def div(attributes: Attributes, a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


@op("Pow")
@widened
def pow_(attributes: Attributes, x: Tensor, y: Tensor) -> Tensor:
    if not x.is_floating_point() and y.is_floating_point():
        return torch.pow(x.to(y.dtype), y).to(x.dtype)
    return torch.pow(x, y.to(x.dtype) if x.is_floating_point() else y).to(x.dtype)


@op("Mod")
@widened
def mod(attributes: Attributes, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if attributes["fmod"] else torch.remainder(a, b)


@op("BitShift")
def bit_shift(attributes: Attributes, x: Tensor, y: Tensor) -> Tensor:
    wide, amount = x.to(torch.int64), y.to(torch.int64)
    shifted = wide << amount if attributes["direction"] == "LEFT" else wide >> amount
    if x.dtype in (torch.uint8, torch.uint16, torch.uint32):
        shifted = shifted & ((1 << (8 * x.element_size())) - 1)
    return shifted.to(x.dtype)


@op("Sum")
@widened
def sum_(attributes: Attributes, *inputs: Tensor) -> Tensor:
    total = inputs[0]
    for value in inputs[1:]:
        total = total + value
    return total


@op("Mean")
def mean(attributes: Attributes, *inputs: Tensor) -> Tensor:
    return sum_(attributes, *inputs) / len(inputs)


@op("Max")
@widened
def max_(attributes: Attributes, *inputs: Tensor) -> Tensor:
    result = inputs[0]
    for value in inputs[1:]:
        result = torch.maximum(result, value)
    return result


@op("Min")
@widened
def min_(attributes: Attributes, *inputs: Tensor) -> Tensor:
    result = inputs[0]
    for value in inputs[1:]:
        result = torch.minimum(result, value)
    return result


@op("Where")
def where(attributes: Attributes, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(condition, x, y)


@op("IsInf")
def is_inf(attributes: Attributes, x: Tensor) -> Tensor:
    positive, negative = attributes["detect_positive"], attributes["detect_negative"]
    infinite = torch.isinf(x)
    if not positive:
        infinite = infinite & (x < 0)
    if not negative:
        infinite = infinite & (x > 0)
    return infinite


@op("Clip")
@widened
def clip(attributes: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if low is None and high is None:
        return x
    # Not maximum and minimum: their gradient is 1/2 where the value equals the limit.
    return torch.clamp(x, None if low is None else low.to(x.dtype), None if high is None else high.to(x.dtype))


@op("LeakyRelu")
def leaky_relu(attributes: Attributes, x: Tensor) -> Tensor:
    return F.leaky_relu(x, attributes["alpha"])


@op("PRelu")
def prelu(attributes: Attributes, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@op("Elu")
def elu(attributes: Attributes, x: Tensor) -> Tensor:
    return F.elu(x, attributes["alpha"])


@op("Celu")
def celu(attributes: Attributes, x: Tensor) -> Tensor:
    return F.celu(x, attributes["alpha"])


@op("Selu")
def selu(attributes: Attributes, x: Tensor) -> Tensor:
    return attributes["gamma"] * torch.where(x > 0, x, attributes["alpha"] * torch.expm1(torch.clamp(x, max=0)))


@op("ThresholdedRelu")
def thresholded_relu(attributes: Attributes, x: Tensor) -> Tensor:
    return torch.where(x > attributes["alpha"], x, torch.zeros_like(x))


@op("HardSigmoid")
def hard_sigmoid(attributes: Attributes, x: Tensor) -> Tensor:
    line = attributes["alpha"] * x + attributes["beta"]
    inside = (line > 0) & (line < 1)
    return torch.where(inside, line, torch.clamp(line, 0, 1).detach())  # gradient 0 at the limits, as in PyTorch


@op("Softplus")
def softplus(attributes: Attributes, x: Tensor) -> Tensor:
    return F.softplus(x, threshold=50)


@op("Shrink")
def shrink(attributes: Attributes, x: Tensor) -> Tensor:
    limit, bias = attributes["lambd"], attributes["bias"]
    zero = torch.zeros_like(x)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, zero)).to(x.dtype)


@op("Gelu")
def gelu(attributes: Attributes, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=attributes["approximate"])


@op("Swish")
def swish(attributes: Attributes, x: Tensor) -> Tensor:
    return x * torch.sigmoid(attributes["alpha"] * x)


@op("BitCast")
def bit_cast(attributes: Attributes, x: Tensor) -> Tensor:
    return x.contiguous().view(torch_type(attributes["to"]))


@op("Cast")
def cast(attributes: Attributes, x: Tensor) -> Tensor:
    return _cast(attributes, x, torch_type(attributes["to"]))


def _cast(attributes: Attributes, x: Tensor, wanted: torch.dtype) -> Tensor:
    if x.is_floating_point() and not wanted.is_floating_point and wanted != torch.bool:
        return x.to(torch.int64).to(wanted) if wanted != torch.int64 else x.to(wanted)
    if wanted.is_floating_point and wanted.itemsize == 1 and x.dtype != wanted:
        return _cast_to_eight_bits(x, wanted, bool(attributes.get("saturate", 1)))
    return x.to(wanted)


def _cast_to_eight_bits(x: Tensor, wanted: torch.dtype, saturate: bool) -> Tensor:
    """Cast by the standard's table: with `saturate` too large numbers become the largest one, else NaN or infinity."""
    wide, largest = x.to(torch.float32), torch.finfo(wanted).max
    if saturate:
        return torch.where(wide.isnan(), wide, wide.clamp(-largest, largest)).to(wanted)
    if wanted == torch.float8_e4m3fn:  # PyTorch saturates; 464 is half-way to the first number that does not fit
        return torch.where(wide.abs() > 464.0, torch.full_like(wide, math.nan), wide).to(wanted)
    return wide.to(wanted)


@op("CastLike")
def cast_like(attributes: Attributes, x: Tensor, like: Tensor) -> Tensor:
    return _cast(attributes, x, like.dtype)


@op("Dropout")
def dropout(attributes: Attributes, x: Tensor, ratio: Any = None, training: Any = None) -> Any:
    """Return the input: a training Dropout is lowered to arithmetic before it reaches a backend."""
    return x, torch.ones_like(x, dtype=torch.bool)


@op("Softmax", since=13)
def softmax(attributes: Attributes, x: Tensor) -> Tensor:
    return torch.softmax(x, attributes["axis"])


@op("LogSoftmax", since=13)
def log_softmax(attributes: Attributes, x: Tensor) -> Tensor:
    return torch.log_softmax(x, attributes["axis"])


@op("Softmax", "LogSoftmax", since=1)
def softmax_flat(attributes: Attributes, x: Tensor) -> Tensor:
    axis = attributes["axis"] % max(x.ndim, 1)
    flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    function = torch.softmax if attributes.op_type == "Softmax" else torch.log_softmax
    return function(flat, 1).reshape(x.shape)


@op("Hardmax", since=13)
def hardmax(attributes: Attributes, x: Tensor) -> Tensor:
    axis = attributes["axis"]
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1)
