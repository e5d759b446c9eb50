"""Fourier transforms are linear: the gradient is the transposed transform, again a Fourier transform."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import NON_DIFFERENTIABLE, ZERO, declare, each, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._scatter import scatter_rows
from onward.autodiff.types import Grads
from onward.graph.builder import Value

Axis = int | Value  # a value if the axis is known only at run time


@gradient("DFT", opset=17, dft_length=NON_DIFFERENTIABLE)
def dft_17(rule: Rule, doutput: Value) -> Grads:
    """output = F input along an axis, so dinput = F^H doutput: the inverse transform, without its factor 1/n."""
    return {"input": _dft(rule, doutput, rule.attr("axis"))}


@gradient("DFT", opset=20, dft_length=NON_DIFFERENTIABLE, axis=NON_DIFFERENTIABLE)
def dft(rule: Rule, doutput: Value) -> Grads:
    """output = F input along an axis, so dinput = F^H doutput: the inverse transform, without its factor 1/n."""
    if rule.optional_input("axis") is None:
        return {"input": _dft(rule, doutput, -2)}
    known = rule.constant_input("axis")
    if known is not None:
        return {"input": _dft(rule, doutput, int(known.reshape(-1)[0]))}
    return {"input": _dft(rule, doutput, rule.input("axis"))}


def _dft(rule: Rule, doutput: Value, axis: Axis) -> Value:
    op, data = rule.op, rule.input("input")
    onesided, inverse = rule.attr("onesided"), rule.attr("inverse")
    length = _length(rule, _size(rule, data, axis))
    scalar = op.Squeeze(length, [0])
    n = op.Cast(length, to=data.dtype or ir.DataType.FLOAT)
    if inverse and onesided:
        # Real output: frequencies have mirror images, except the first and, for an even length, the last.
        spectrum = op.Div(_fourier(rule, doutput, scalar, axis, onesided=1), n)
        weighted = op.Mul(spectrum, _mirrored(rule, data, axis, length, spectrum))
        return _resize_axis(rule, weighted, data, axis)
    if inverse:
        grad = op.Div(_fourier(rule, doutput, scalar, axis), n)
    else:
        whole = _fit(rule, doutput, axis, length) if onesided else doutput
        grad = op.Mul(_fourier(rule, whole, scalar, axis, inverse=1), n)
    return _resize_axis(rule, _real_part(rule, grad, data), data, axis)


def _size(rule: Rule, value: Value, axis: Axis) -> Value:
    """Return the size along an axis as a vector of one."""
    if isinstance(axis, int):
        return rule.dim_of(value, axis)
    return rule.op.Gather(rule.op.Shape(value), rule.op.Reshape(axis, [1]))


def _length(rule: Rule, size: Value) -> Value:
    """Return the length of the transform as a vector of one."""
    given = rule.optional_input("dft_length")
    if given is not None:
        return rule.op.Reshape(rule.op.cast(given, ir.DataType.INT64), [1])
    if rule.attr("inverse") and rule.attr("onesided"):
        return rule.op.Mul(rule.op.Sub(size, 1), 2)
    return size


def _fourier(rule: Rule, value: Value, length: Value, axis: Axis, *, inverse: int = 0, onesided: int = 0) -> Value:
    """Return the DFT of `value` in the form that the model's opset has."""
    attributes = {"inverse": inverse or None, "onesided": onesided or None}
    if rule.op.opset < 20:
        return rule.op.DFT(value, length, axis=axis, **attributes)
    return rule.op.DFT(value, length, np.array(axis, np.int64) if isinstance(axis, int) else axis, **attributes)


def _real_part(rule: Rule, value: Value, like: Value) -> Value:
    """Return a complex value with as many parts (1 or 2) as `like` has."""
    dims = rule.dims(like)
    if dims is not None and dims[-1] == 2:
        return value
    return rule.op.Slice(value, [0], rule.dim_of(like, -1), [-1])


def _resize_axis(rule: Rule, value: Value, like: Value, axis: Axis) -> Value:
    """Return `value` cut or padded with zeros at the end of `axis` to the size of `like`."""
    dims, given = rule.dims(like), rule.optional_input("dft_length")
    if given is None and not rule.attr("onesided") and dims is not None:
        return value
    return _fit(rule, value, axis, _size(rule, like, axis))


def _fit(rule: Rule, value: Value, axis: Axis, size: Value) -> Value:
    """Return `value` cut or padded with zeros at the end of `axis` to `size`."""
    op = rule.op
    axes = op.constant(np.array([axis], np.int64)) if isinstance(axis, int) else op.Reshape(axis, [1])
    missing = op.Sub(size, _size(rule, value, axis))
    return op.Pad(value, op.Concat(np.array([0], np.int64), missing, axis=0), None, axes)


def _mirrored(rule: Rule, data: Value, axis: Axis, length: Value, spectrum: Value) -> Value:
    """Return 1 for the frequencies without a mirror image, else 2, placed along `axis` of `spectrum`."""
    op = rule.op
    k = op.Range(0, op.Squeeze(_size(rule, spectrum, axis), [0]), 1)
    alone = op.Or(op.Equal(k, 0), op.Equal(op.Mul(k, 2), length))
    weights = op.Sub(2.0, op.Cast(alone, to=data.dtype or ir.DataType.FLOAT))
    rank = rule.rank(data)
    shape: Value | np.ndarray
    if isinstance(axis, int) and (rank is not None or axis < 0):
        after = -axis - 1 if rank is None or axis < 0 else rank - 1 - axis
        shape = np.array([-1] + [1] * after, np.int64)
    else:
        place = op.constant(np.array([axis], np.int64)) if isinstance(axis, int) else op.Reshape(axis, [1])
        shape = op.Reshape(op.OneHot(place, op.Size(op.Shape(spectrum)), np.array([1, -1], np.int64)), [-1])
    return op.Reshape(weights, shape)


@gradient("STFT", opset=17, frame_step=NON_DIFFERENTIABLE, frame_length=NON_DIFFERENTIABLE)
def stft(rule: Rule, doutput: Value) -> Grads:
    """output = F (window times each frame of signal), so with dframe = F^H doutput, dsignal adds window times dframe
    where the frames lie, and dwindow sums signal times dframe."""
    op, window = rule.op, rule.optional_input("window")
    signal = _with_parts(rule, rule.input("signal"))
    length = _frame_length(rule, signal, window)
    scalar = op.Squeeze(length, [0])
    dtype = signal.dtype or ir.DataType.FLOAT
    whole = _fit(rule, doutput, -2, length) if rule.attr("onesided") else doutput
    dframes = op.Mul(_fourier(rule, whole, scalar, -2, inverse=1), op.Cast(length, to=dtype))
    dframes = _real_part(rule, dframes, signal)  # [batch, frames, length, parts]
    step = op.Reshape(op.cast(rule.input("frame_step"), ir.DataType.INT64), [])
    count = op.Squeeze(rule.dim_of(doutput, 1), [0])
    starts = op.Mul(op.Range(0, count, 1), step)
    places = op.Add(op.Unsqueeze(starts, [1]), op.Range(0, scalar, 1))
    dsignal = dwindow = None
    if rule.needs("signal"):
        weighted = dframes if window is None else op.Mul(dframes, op.Unsqueeze(window, [1]))
        places.shape = ir.Shape([None, None])
        dsignal = scatter_rows(rule, signal, places, weighted, 1)
        if signal is not rule.input("signal"):
            dsignal = rule.reshape_like(dsignal, rule.input("signal"))
    if window is not None and rule.needs("window"):
        dwindow = op.ReduceSum(op.Mul(op.Gather(signal, places, axis=1), dframes), [0, 1, 3], keepdims=0)
    return {"signal": dsignal, "window": dwindow}


def _with_parts(rule: Rule, signal: Value) -> Value:
    """Return the signal of an STFT as [batch, length, parts]: ONNX Runtime takes [batch, length] as real, too."""
    dims = rule.dims(signal)
    if dims is not None and len(dims) == 3:
        return signal
    whole = rule.op.Reshape(signal, [0, 0, -1]) if dims is None else rule.op.Unsqueeze(signal, [2])
    whole.shape = ir.Shape([None, None, None] if dims is None else [*dims, 1])
    return whole


def _frame_length(rule: Rule, signal: Value, window: Value | None) -> Value:
    """Return the length of a frame as a vector of one."""
    given = rule.optional_input("frame_length")
    if given is not None:
        return rule.op.Reshape(rule.op.cast(given, ir.DataType.INT64), [1])
    return rule.dim_of(signal, 1) if window is None else rule.dim_of(window, 0)


# The edges of the bands are rounded to whole frequencies.
_MEL = each(NON_DIFFERENTIABLE, "num_mel_bins", "dft_length", "sample_rate")
declare("MelWeightMatrix", opset=17, lower_edge_hertz=ZERO, upper_edge_hertz=ZERO, **_MEL)
for _op_type in ("HannWindow", "HammingWindow", "BlackmanWindow"):
    declare(_op_type, opset=17, size=NON_DIFFERENTIABLE)
