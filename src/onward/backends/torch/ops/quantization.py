"""Quantised tensors, in the arithmetic of the standard: scale, zero point, rounding half to even, saturation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.torch.ops.convolution import conv
from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import torch_type

_RANGES = {
    torch.uint8: (0, 255), torch.int8: (-128, 127), torch.uint16: (0, 65535), torch.int16: (-32768, 32767),
    torch.int32: (-(2**31), 2**31 - 1),
}  # fmt: skip


def _along(value: Tensor, x: Tensor, attributes: Attributes) -> Tensor:
    """Return a scale or zero point, one number or one per channel or block, in a shape that broadcasts with `x`."""
    block = attributes.get("block_size", 0)
    if value.ndim == 0 or (value.numel() == 1 and value.ndim <= 1):
        return value.reshape(())
    axis = attributes.get("axis", 1) % x.ndim
    if block and value.ndim == x.ndim:
        wide = value.to(torch.int64) if not value.is_floating_point() else value
        return wide.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return value.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


@op("QuantizeLinear")
def quantize_linear(attributes: Attributes, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    wanted = zero.dtype if zero is not None else torch.uint8
    if zero is None and attributes.get("output_dtype", 0):
        wanted = torch_type(attributes["output_dtype"])
    precision = attributes.get("precision", 0)
    wide = torch_type(precision) if precision else torch.promote_types(scale.dtype, torch.float32)
    y = x.to(wide) / _along(scale, x, attributes).to(wide)
    if wanted.is_floating_point:
        largest = torch.finfo(wanted).max
        return y.clamp(-largest, largest).to(wanted) if attributes.get("saturate", 1) else y.to(wanted)
    y = torch.round(y)
    if zero is not None:
        y = y + _along(zero, x, attributes).to(wide)
    return y.clamp(*_RANGES[wanted]).to(torch.int64).to(wanted)


@op("DequantizeLinear")
def dequantize_linear(attributes: Attributes, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    kind = scale.dtype
    wide = torch.promote_types(kind, torch.float32)
    values = x.to(wide) if x.is_floating_point() else x.to(torch.int64)
    if zero is not None:
        shift = _along(zero, x, attributes)
        values = values - (shift.to(wide) if x.is_floating_point() else shift.to(torch.int64))
    y = values.to(wide) * _along(scale, x, attributes).to(wide)
    return y.to(torch_type(attributes["output_dtype"]) if attributes.get("output_dtype", 0) else kind)


def _shifted(x: Tensor, zero: Tensor | None, dim: int | None = None) -> Tensor:
    """Return x minus its zero point, in float64, which is exact for sums of products of 8-bit numbers."""
    wide = x.to(torch.float64)
    if zero is None:
        return wide
    shift = zero.to(torch.float64)
    if shift.ndim == 1 and shift.numel() > 1 and dim is not None:
        shift = shift.reshape([-1 if i == dim else 1 for i in range(x.ndim)])
    return wide - (shift if shift.numel() > 1 else shift.reshape(()))


@op("MatMulInteger")
def matmul_integer(
    attributes: Attributes, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return (_shifted(a, a_zero, a.ndim - 2) @ _shifted(b, b_zero, b.ndim - 1)).to(torch.int32)


@op("ConvInteger")
def conv_integer(
    attributes: Attributes, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    return conv(attributes, _shifted(x, x_zero), _shifted(w, w_zero, 0)).to(torch.int32)


def _requantized(exact: Tensor, factor: Any, scale: Tensor, zero: Tensor) -> Tensor:
    y = torch.round(exact * factor / scale.double()) + zero.double()
    return y.clamp(*_RANGES[zero.dtype]).to(torch.int64).to(zero.dtype)


@op("QLinearMatMul")
def qlinear_matmul(
    attributes: Attributes, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
) -> Tensor:  # fmt: skip
    exact = _shifted(a, a_zero, a.ndim - 2) @ _shifted(b, b_zero, b.ndim - 1)
    return _requantized(exact, a_scale.double() * b_scale.double(), y_scale, y_zero)


@op("QLinearConv")
def qlinear_conv(
    attributes: Attributes, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    exact = conv(attributes, _shifted(x, x_zero), _shifted(w, w_zero, 0))
    rank = exact.ndim - 2
    if bias is not None:
        exact = exact + bias.double().reshape([1, -1] + [1] * rank)
    scale = w_scale.double()
    factor = x_scale.double() * (scale.reshape([1, -1] + [1] * rank) if scale.numel() > 1 else scale.reshape(()))
    return _requantized(exact, factor, y_scale, y_zero)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(attributes: Attributes, x: Tensor) -> Any:
    low, high = F.relu(-x.min()).neg(), F.relu(x.max())
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round(torch.clamp(-low / scale, 0, 255))
    y = torch.clamp(torch.round(x / scale) + zero, 0, 255).to(torch.uint8)
    return y, scale, zero.to(torch.uint8)
