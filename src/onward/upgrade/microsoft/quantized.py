"""Quantized operators of `com.microsoft`: the float operator between DequantizeLinear and QuantizeLinear.

ONNX Runtime's quantizer writes them. `DynamicQuantizeLSTM` rounds its input and its state at every step; the LSTM that
replaces it does not, so the two agree within the error of quantization. All others are equal.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.graph.integer_products import Quantized, dequantized
from onward.upgrade.microsoft.attention import attention
from onward.upgrade.microsoft.call import Call, CannotDecompose, decomposes

_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_STANDARD_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32)
LSTM_ATTRIBUTES = (
    "activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget",
)  # fmt: skip


def _floats(call: Call, index: int, axis: int | None = None) -> Value:
    """Return the floats of the input at `index`, which its scale and its zero point follow."""
    return _dequantize(call, call.required(index), call.required(index + 1), call.input(index + 2), axis)


def _dequantize(call: Call, values: Value, scale: Value, zero: Value | None, axis: int | None = None) -> Value:
    return dequantized(call.op, Quantized(values, scale, zero), axis)


def _integers(call: Call, y: Value, index: int) -> list[Value | None]:
    """Return `y` as integers with the scale at `index` and the zero point behind it."""
    zero = call.input(index + 1)
    return [call.op.QuantizeLinear(y, call.required(index), zero)]


def _channels_first(call: Call) -> None:
    if call.attr("channels_last", 0):
        raise CannotDecompose("channels last")


@decomposes("QLinearAdd")
def qlinear_add(call: Call) -> list[Value | None]:
    """C = A + B."""
    return _integers(call, call.op.Add(_floats(call, 0), _floats(call, 3)), 6)


@decomposes("QLinearMul")
def qlinear_mul(call: Call) -> list[Value | None]:
    """C = A B."""
    return _integers(call, call.op.Mul(_floats(call, 0), _floats(call, 3)), 6)


@decomposes("QLinearSigmoid")
def qlinear_sigmoid(call: Call) -> list[Value | None]:
    """Y = sigmoid(X)."""
    return _integers(call, call.op.Sigmoid(_floats(call, 0)), 3)


@decomposes("QLinearLeakyRelu")
def qlinear_leaky_relu(call: Call) -> list[Value | None]:
    """Y = LeakyRelu(X)."""
    return _integers(call, call.op.LeakyRelu(_floats(call, 0), alpha=call.attr("alpha", None)), 3)


@decomposes("QLinearSoftmax")
def qlinear_softmax(call: Call) -> list[Value | None]:
    """Y = Softmax(X) over one axis; before opset 13 over all axes from `axis` on."""
    op, x = call.op, _floats(call, 0)
    axis = int(call.attr("axis", -1))
    if int(call.attr("opset", 13)) < 13:
        rank = call.rank(call.required(0))
        if axis % rank != rank - 1:
            flat = op.Softmax(op.Flatten(x, axis=axis % rank), axis=-1)
            return _integers(call, op.Reshape(flat, op.Shape(x)), 3)
    return _integers(call, op.Softmax(x, axis=axis), 3)


@decomposes("QLinearGlobalAveragePool")
def qlinear_global_average_pool(call: Call) -> list[Value | None]:
    """Y = GlobalAveragePool(X)."""
    _channels_first(call)
    return _integers(call, call.op.GlobalAveragePool(_floats(call, 0)), 3)


@decomposes("QLinearAveragePool")
def qlinear_average_pool(call: Call) -> list[Value | None]:
    """Y = AveragePool(X)."""
    _channels_first(call)
    names = [n for n in _POOL if n != "dilations" or call.op.opset >= 19]
    return _integers(call, call.op.AveragePool(_floats(call, 0), **{n: call.attr(n, None) for n in names}), 3)


@decomposes("QLinearReduceMean")
def qlinear_reduce_mean(call: Call) -> list[Value | None]:
    """Y = ReduceMean(X)."""
    op, axes, keep = call.op, call.attr("axes", None), call.attr("keepdims", 1)
    x = _floats(call, 0)
    if op.opset >= 18:
        mean = op.ReduceMean(x, None if axes is None else np.array(axes, np.int64), keepdims=keep)
    else:
        mean = op.ReduceMean(x, axes=axes, keepdims=keep)
    return _integers(call, mean, 3)


@decomposes("QLinearConcat")
def qlinear_concat(call: Call) -> list[Value | None]:
    """Y = the tensors, each with its own scale, joined along `axis`."""
    parts = [_floats(call, index) for index in range(2, len(call.node.inputs), 3)]
    return _integers(call, call.op.Concat(*parts, axis=int(call.attr("axis", 0))), 0)


@decomposes("QLinearWhere")
def qlinear_where(call: Call) -> list[Value | None]:
    """Z = X where the condition is true, else Y."""
    return _integers(call, call.op.Where(call.required(0), _floats(call, 1), _floats(call, 4)), 7)


@decomposes("QLinearConv")
def qlinear_conv(call: Call) -> list[Value | None]:
    """Y = Conv(X, W, B); the bias counts steps of both scales together."""
    _channels_first(call)
    op, bias = call.op, call.input(8)
    if bias is not None:
        bias = op.DequantizeLinear(bias, op.Mul(call.required(1), call.required(4)), axis=0)
    attributes = {n: call.attr(n, None) for n in _CONV}
    return _integers(call, op.Conv(_floats(call, 0), _floats(call, 3, axis=0), bias, **attributes), 6)


@decomposes("QGemm")
def qgemm(call: Call) -> list[Value | None]:
    """Y = alpha A' B' + C; C counts steps of alpha and both scales. Y is float if it has no scale."""
    op, alpha = call.op, float(call.attr("alpha", 1.0))
    turn_a, turn_b = call.attr("transA", 0), call.attr("transB", 0)
    b, c = _floats(call, 3, axis=0 if turn_b else 1), call.input(6)
    if c is not None:
        steps = op.Mul(call.required(1), call.required(4))
        c = op.DequantizeLinear(c, steps if alpha == 1.0 else op.Mul(steps, alpha), axis=-1)
    y = op.Gemm(_floats(call, 0), b, c, alpha=alpha, transA=turn_a, transB=turn_b)
    return [y] if call.input(7) is None else _integers(call, y, 7)


@decomposes("MatMulIntegerToFloat")
def mat_mul_integer_to_float(call: Call) -> list[Value | None]:
    """Y = A B + bias, of integers A and B: both scales come before both zero points."""
    op = call.op
    a = _dequantize(call, call.required(0), call.required(2), call.input(4))
    b = _dequantize(call, call.required(1), call.required(3), call.input(5), axis=-1)
    product, bias = op.MatMul(a, b), call.input(6)
    return [product if bias is None else op.Add(product, bias)]


@decomposes("DynamicQuantizeMatMul")
def dynamic_quantize_mat_mul(call: Call) -> list[Value | None]:
    """Y = A B + bias, of floats A, which are quantized with a scale of their own, and integers B."""
    op = call.op
    values, scale, zero = op.multi("DynamicQuantizeLinear", call.required(0), outputs=3)
    b = _dequantize(call, call.required(1), call.required(2), call.input(3), axis=-1)
    product, bias = op.MatMul(op.DequantizeLinear(values, scale, zero), b), call.input(4)
    return [product if bias is None else op.Add(product, bias)]


@decomposes("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(call: Call) -> list[Value | None]:
    """The LSTM with W and R as floats, transposed: they are stored as [directions, input, 4 hidden]."""
    op = call.op
    w, r = _rows_of_gates(call, 1, 8), _rows_of_gates(call, 2, 10)
    given = [call.input(index) for index in (3, 4, 5, 6, 7)]
    attributes = {n: call.attr(n, None) for n in LSTM_ATTRIBUTES}
    return list(op.multi("LSTM", call.required(0), w, r, *given, outputs=3, **attributes))


def _rows_of_gates(call: Call, index: int, scale: int) -> Value:
    """Return the floats of W or R, [directions, 4 hidden, input]; a scale belongs to a direction, or to a row too."""
    op, values, factor, zero = call.op, call.required(index), call.required(scale), call.input(scale + 1)
    if call.rank(factor) == 1:
        return op.Transpose(op.DequantizeLinear(values, factor, zero, axis=0), perm=[0, 2, 1])
    # DequantizeLinear has one axis for its scales: directions and rows become one.
    flat, shape = np.array([-1]), op.Shape(op.Transpose(values, perm=[0, 2, 1]))
    joined = op.Reshape(op.Transpose(values, perm=[1, 0, 2]), np.array([0, -1]))
    zeros = None if zero is None else op.Reshape(zero, flat)
    floats = op.DequantizeLinear(joined, op.Reshape(factor, flat), zeros, axis=1)
    return op.Reshape(op.Transpose(floats, perm=[1, 0]), shape)


class _FloatAttention(Call):
    """A QAttention as the call of Attention that it is: other inputs at the same node."""

    def __init__(self, call: Call, inputs: list[Value | None]) -> None:
        super().__init__(call.node, call.op)
        self._inputs = inputs

    def input(self, index: int) -> Value | None:
        return self._inputs[index] if index < len(self._inputs) else None


@decomposes("QAttention")
def qattention(call: Call) -> list[Value | None]:
    """Attention of the floats; given are input, weight, bias, both scales, mask, both zero points, past."""
    data = _dequantize(call, call.required(0), call.required(3), call.input(6))
    weight = _dequantize(call, call.required(1), call.required(4), call.input(7), axis=-1)
    return attention(_FloatAttention(call, [data, weight, call.input(2), call.input(5), call.input(8)]))


@decomposes("QuantizeLinear")
def quantize_linear(call: Call) -> list[Value | None]:
    """y = QuantizeLinear(x), as the standard defines it."""
    _check_type(call, call.input(2))
    return [call.op.QuantizeLinear(call.required(0), call.required(1), call.input(2), axis=call.attr("axis", None))]


@decomposes("DequantizeLinear")
def dequantize_linear(call: Call) -> list[Value | None]:
    """y = DequantizeLinear(x), as the standard defines it."""
    _check_type(call, call.required(0))
    return [call.op.DequantizeLinear(call.required(0), call.required(1), call.input(2), axis=call.attr("axis", None))]


def _check_type(call: Call, integers: Value | None) -> None:
    if integers is not None and integers.dtype not in _STANDARD_TYPES and call.op.opset < 21:
        raise CannotDecompose("integers of 4 or 16 bits, which the standard has from opset 21 on")
