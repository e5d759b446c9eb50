"""Activations, products and normalizations of `com.microsoft`."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Value
from onward.upgrade.microsoft.call import SIMPLIFIED, Call, CannotDecompose, decomposes

# -- activations ---------------------------------------------------------------------------------------------


def _gelu(op: Builder, x: Value, *, tanh: bool = False) -> Value:
    if op.opset >= 20:
        return op.Gelu(x, approximate="tanh" if tanh else None)
    if tanh:
        cubic = op.Mul(op.Add(x, op.Mul(op.Mul(op.Mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(cubic), 1.0))
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0))


@decomposes("Gelu")
def gelu(call: Call) -> list[Value | None]:
    """Y = X Phi(X)."""
    return [_gelu(call.op, call.required(0))]


@decomposes("BiasGelu")
def bias_gelu(call: Call) -> list[Value | None]:
    """C = Gelu(A + B)."""
    return [_gelu(call.op, call.op.Add(call.required(0), call.required(1)))]


@decomposes("FastGelu")
def fast_gelu(call: Call) -> list[Value | None]:
    """Y = Gelu(X + bias), with the tanh approximation."""
    x, bias = call.required(0), call.input(1)
    return [_gelu(call.op, x if bias is None else call.op.Add(x, bias), tanh=True)]


@decomposes("QuickGelu")
def quick_gelu(call: Call) -> list[Value | None]:
    """Y = X sigmoid(alpha X)."""
    op, x = call.op, call.required(0)
    return [op.Mul(x, op.Sigmoid(op.Mul(x, float(call.attr("alpha", 1.702)))))]


def _activate(op: Builder, name: str, x: Value, parameters: list[float]) -> Value:
    """Return an activation by its ONNX name, with the parameters that FusedConv and FusedGemm carry."""
    match name:
        case "":
            return x
        case "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign":
            made: Value = getattr(op, name)(x)
            return made
        case "LeakyRelu":
            return op.LeakyRelu(x, alpha=parameters[0] if parameters else None)
        case "HardSigmoid":
            alpha, beta = parameters[:2] if len(parameters) > 1 else (0.2, 0.5)
            return op.HardSigmoid(x, alpha=alpha, beta=beta)
        case "Clip" if len(parameters) > 1:
            return op.Clip(x, parameters[0], parameters[1])
        case _:
            raise CannotDecompose(f"activation {name}")


# -- products ------------------------------------------------------------------------------------------------


@decomposes("FusedMatMul")
@decomposes("TransposeMatMul")
def fused_mat_mul(call: Call) -> list[Value | None]:
    """Y = alpha A' B', each transposed as its attributes say."""
    op = call.op
    sides = []
    for index, side in enumerate("AB"):
        value = call.required(index)
        last, batch = call.attr(f"trans{side}", 0), call.attr(f"transBatch{side}", 0)
        if last or batch:
            rank = call.rank(value)
            order = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
            if last:
                order[-2:] = reversed(order[-2:])
            if rank > 1:
                value = op.Transpose(value, perm=order)
        sides.append(value)
    product, alpha = op.MatMul(*sides), float(call.attr("alpha", 1.0))
    return [product if alpha == 1.0 else op.Mul(product, alpha)]


@decomposes("FusedGemm")
def fused_gemm(call: Call) -> list[Value | None]:
    """Y = activation(Gemm(A, B, C))."""
    names = ("alpha", "beta", "transA", "transB")
    attributes = {n: call.attr(n, None) for n in names}
    product = call.op.Gemm(call.required(0), call.required(1), call.input(2), **attributes)
    parameters = [call.attr(f"activation_{n}", None) for n in ("alpha", "beta", "gamma")]
    given = [float(p) for p in parameters if p is not None]
    return [_activate(call.op, call.attr("activation", ""), product, given)]


@decomposes("FusedConv")
def fused_conv(call: Call) -> list[Value | None]:
    """Y = activation(Conv(X, W, B) + Z)."""
    op = call.op
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {n: call.attr(n, None) for n in names}
    result = op.Conv(call.required(0), call.required(1), call.input(2), **attributes)
    rest = call.input(3)
    if rest is not None:
        result = op.Add(result, rest)
    parameters = [float(p) for p in call.attr("activation_params", [])]
    return [_activate(op, call.attr("activation", ""), result, parameters)]


# -- normalizations ------------------------------------------------------------------------------------------


def _mean(op: Builder, x: Value, axis: int = -1) -> Value:
    if op.opset >= 18:
        return op.ReduceMean(x, np.array([axis]), keepdims=1)
    return op.ReduceMean(x, axes=[axis], keepdims=1)


def _layer_norm(op: Builder, x: Value, gamma: Value, beta: Value | None, epsilon: float) -> list[Value]:
    """Return the normalized x, its mean and the reciprocal of its standard deviation."""
    if op.opset >= 17:
        return list(op.multi("LayerNormalization", x, gamma, beta, outputs=3, axis=-1, epsilon=epsilon))
    mean = _mean(op, x)
    centred = op.Sub(x, mean)
    inverse = op.Reciprocal(op.Sqrt(op.Add(_mean(op, op.Mul(centred, centred)), epsilon)))
    scaled = op.Mul(op.Mul(centred, inverse), gamma)
    return [scaled if beta is None else op.Add(scaled, beta), mean, inverse]


def _rms_norm(op: Builder, x: Value, gamma: Value, epsilon: float) -> list[Value]:
    """Return gamma * x / rms(x) and 1 / rms(x), where rms is the root mean square."""
    inverse = op.Reciprocal(op.Sqrt(op.Add(_mean(op, op.Mul(x, x)), epsilon)))
    return [op.Mul(op.Mul(x, inverse), gamma), inverse]


@decomposes("SkipLayerNormalization")
def skip_layer_normalization(call: Call) -> list[Value | None]:
    """output = LayerNormalization(input + skip + bias)."""
    op, bias = call.op, call.input(4)
    total = op.Add(call.required(0), call.required(1))
    total = total if bias is None else op.Add(total, bias)
    made = _layer_norm(op, total, call.required(2), call.input(3), float(call.attr("epsilon", 1e-12)))
    return [*made, total]


@decomposes("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(call: Call) -> list[Value | None]:
    """output = the root-mean-square normalization of input + skip + bias."""
    op, bias = call.op, call.input(3)
    total = op.Add(call.required(0), call.required(1))
    total = total if bias is None else op.Add(total, bias)
    made, inverse = _rms_norm(op, total, call.required(2), float(call.attr("epsilon", 1e-12)))
    return [made, None, inverse, total]


@decomposes(SIMPLIFIED)
def simplified_layer_normalization(call: Call) -> list[Value | None]:
    """Y = the root-mean-square normalization of X over its last axis."""
    x, axis = call.required(0), int(call.attr("axis", -1))
    if axis != -1 and axis != call.rank(x) - 1:
        raise CannotDecompose("more than the last axis is normalized")
    return list(_rms_norm(call.op, x, call.required(1), float(call.attr("epsilon", 1e-5))))


@decomposes("EmbedLayerNormalization")
def embed_layer_normalization(call: Call) -> list[Value | None]:
    """output = LayerNormalization(word[input_ids] + position[position_ids] + segment[segment_ids])."""
    op, ids, segments = call.op, call.required(0), call.input(1)
    word, position, segment = call.required(2), call.required(3), call.input(4)
    positions = call.input(8)
    places = call.range(call.size(ids, 1)) if positions is None else positions
    total = op.Add(op.Gather(word, ids, axis=0), op.Gather(position, places, axis=0))
    if segment is not None and segments is not None:
        total = op.Add(total, op.Gather(segment, segments, axis=0))
    made = _layer_norm(op, total, call.required(5), call.required(6), float(call.attr("epsilon", 1e-12)))
    mask = call.input(7)
    lengths: Value
    if mask is not None:
        valid = op.Cast(op.Equal(mask, 1), to=ir.DataType.INT32)
        lengths = op.ReduceSum(valid, np.array([1]), keepdims=0)
    else:
        lengths = op.Expand(np.array(0, np.int32), call.shape(call.size(ids, 0)))
    return [made[0], lengths, total]


# -- the rest ------------------------------------------------------------------------------------------------


@decomposes("BiasAdd")
def bias_add(call: Call) -> list[Value | None]:
    """Y = X + bias + skip."""
    return [call.op.Add(call.op.Add(call.required(0), call.required(1)), call.required(2))]


@decomposes("CDist")
def cdist(call: Call) -> list[Value | None]:
    """C[i, j] = |A[i] - B[j]|, or its square."""
    op = call.op
    difference = op.Sub(op.Unsqueeze(call.required(0), np.array([1])), op.Unsqueeze(call.required(1), np.array([0])))
    squares = (
        op.ReduceSumSquare(difference, np.array([2]), keepdims=0)
        if op.opset >= 18
        else op.ReduceSum(op.Mul(difference, difference), np.array([2]), keepdims=0)
    )
    return [squares if call.attr("metric", "sqeuclidean") == "sqeuclidean" else op.Sqrt(squares)]


@decomposes("Trilu")
def trilu(call: Call) -> list[Value | None]:
    """Y = the upper or lower triangle of X, as the standard defines it."""
    if call.op.opset < 14:
        raise CannotDecompose("the standard has Trilu from opset 14 on")
    return [call.op.Trilu(call.required(0), call.input(1), upper=call.attr("upper", None))]
