"""Operators that ONNX 1.0 to 1.4 had as experimental, which converters of 2018 wrote and ONNX Runtime still runs.

They are in the default domain. `MeanVarianceNormalization` is an operator of the standard now, with another attribute.
`LayerNormalization` and `ThresholdedRelu` came with the same meaning, so an upgrade is enough.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.upgrade.microsoft.call import Call, CannotDecompose, decomposes

_OLD = ("across_channels", "normalize_variance")
_REST = np.iinfo(np.int64).max


def is_standard(node: ir.Node) -> bool:
    """Return whether a node has the name of an experimental operator, but is the one of the standard."""
    return node.op_type == "MeanVarianceNormalization" and not any(name in node.attributes for name in _OLD)


@decomposes("Affine", domain="")
def affine(call: Call) -> list[Value | None]:
    """Y = alpha X + beta."""
    scaled = call.op.Mul(call.required(0), float(call.attr("alpha", 1.0)))
    return [call.op.Add(scaled, float(call.attr("beta", 0.0)))]


@decomposes("Scale", domain="")
def scale(call: Call) -> list[Value | None]:
    """Y = scale X."""
    return [call.op.Mul(call.required(0), float(call.attr("scale", 1.0)))]


@decomposes("ImageScaler", domain="")
def image_scaler(call: Call) -> list[Value | None]:
    """Y[n, c] = scale X[n, c] + bias[c]."""
    x, bias = call.required(0), np.array(call.attr("bias", []), np.float32)
    scaled = call.op.Mul(x, float(call.attr("scale", 1.0)))
    if not bias.size:
        return [scaled]
    return [call.op.Add(scaled, call.op.CastLike(call.op.constant(bias.reshape(1, -1, 1, 1)), x))]


@decomposes("ScaledTanh", domain="")
def scaled_tanh(call: Call) -> list[Value | None]:
    """Y = alpha tanh(beta X)."""
    inner = call.op.Mul(call.required(0), float(call.attr("beta", 1.0)))
    return [call.op.Mul(call.op.Tanh(inner), float(call.attr("alpha", 1.0)))]


@decomposes("ParametricSoftplus", domain="")
def parametric_softplus(call: Call) -> list[Value | None]:
    """Y = alpha log(1 + exp(beta X))."""
    inner = call.op.Mul(call.required(0), float(call.attr("beta", 1.0)))
    return [call.op.Mul(call.op.Softplus(inner), float(call.attr("alpha", 1.0)))]


@decomposes("Crop", domain="")
def crop(call: Call) -> list[Value | None]:
    """Y = X without its borders, or the part of a given size (`scale`) behind the left and the upper border."""
    border, size = call.attr("border", None), call.attr("scale", None)
    if border is None or len(border) != 4:
        raise CannotDecompose("border has other than four numbers")
    left, top, right, bottom = border
    ends = [-bottom if bottom else _REST, -right if right else _REST]
    if size:
        ends = [top + size[0], left + size[1]]
    return [call.op.Slice(call.required(0), np.array([top, left]), np.array(ends), np.array([2, 3]))]


@decomposes("DynamicSlice", domain="")
def dynamic_slice(call: Call) -> list[Value | None]:
    """Y = Slice(X, starts, ends, axes)."""
    return [call.op.Slice(*(call.required(i) for i in range(3)), call.input(3))]


@decomposes("MeanVarianceNormalization", domain="")
def mean_variance_normalization(call: Call) -> list[Value | None]:
    """Y = X - mean of each channel, or of all (`across_channels`), over the deviation (`normalize_variance`)."""
    op, x = call.op, call.required(0)
    axes = call.attr("axes", [0, 1, 2, 3] if call.attr("across_channels", 0) else [0, 2, 3])
    if call.attr("normalize_variance", 1):
        return [op.MeanVarianceNormalization(x, axes=axes)]
    mean = op.ReduceMean(x, np.array(axes), keepdims=1) if op.opset >= 18 else op.ReduceMean(x, axes=axes, keepdims=1)
    return [op.Sub(x, mean)]
