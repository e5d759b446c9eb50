"""Fourier transforms as matrix products; the mel filter bank."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

Size = int | Value
_SLOW = "n * n products where a fast Fourier transform has n * log(n)"
DOUBLE, FLOAT = ir.DataType.DOUBLE, ir.DataType.FLOAT


def _waves(at: Lowering, columns: Size, length: Size, rows: Size, dtype: ir.DataType) -> tuple[Value, Value]:
    """Return cos and sin of 2 pi k n / length, [rows, columns]; the product k n is reduced first, which is exact."""
    op = at.op
    turns = op.Mod(op.Mul(at.reshape(at.count(rows), [-1, 1]), at.count(columns)), at.scalar(length))
    angle = op.Mul(op.Div(op.Cast(turns, to=DOUBLE), op.Cast(at.scalar(length), to=DOUBLE)), 2 * math.pi)
    wave = op.Cast(op.Cos(angle), to=dtype), op.Cast(op.Sin(angle), to=dtype)
    return wave


def transform(at: Lowering, x: Value, length: Size, *, inverse: bool, onesided: bool) -> Value:
    """Return the transform of [rows, n, 1 or 2] along the middle axis."""
    op, dtype = at.op, at.dtype(x)
    rows, n, parts = at.size(x, 0), at.size(x, 1), at.known_dim(x, 2)
    if parts is None:  # real numbers get an imaginary part of 0
        missing = op.Sub([2], at.dim_of(x, 2))
        x, parts = op.Pad(x, op.Concat(np.zeros(5, np.int64), missing, axis=0)), 2
    real = at.reshape(op.Slice(x, [0], [1], [2]), [rows, n])
    imaginary = at.reshape(op.Slice(x, [1], [2], [2]), [rows, n]) if parts == 2 else None
    if inverse and onesided:
        return _to_real(at, real, imaginary, rows, n, length)
    count = at.add(at.div(length, 2), 1) if onesided else length
    taken = at.least(n, length)
    if not (isinstance(n, int) and isinstance(length, int) and n <= length):
        real = op.Slice(real, [0], at.vector([taken]), [1])
        imaginary = None if imaginary is None else op.Slice(imaginary, [0], at.vector([taken]), [1])
    cos, sin = _waves(at, count, length, taken, dtype)
    sign = 1.0 if inverse else -1.0
    a, b = op.MatMul(real, cos), op.Mul(op.MatMul(real, sin), sign)
    if imaginary is not None:
        a = op.Sub(a, op.Mul(op.MatMul(imaginary, sin), sign))
        b = op.Add(b, op.MatMul(imaginary, cos))
    if inverse:
        total = op.Cast(at.scalar(length), to=dtype)
        a, b = op.Div(a, total), op.Div(b, total)
    return op.Concat(at.reshape(a, [rows, count, 1]), at.reshape(b, [rows, count, 1]), axis=2)


def _to_real(at: Lowering, real: Value, imaginary: Value | None, rows: Size, n: Size, length: Size) -> Value:
    """Return the real signal of a one-sided spectrum: frequencies with a mirror image count twice."""
    op, dtype = at.op, at.dtype(real)
    half = at.add(at.div(length, 2), 1)
    taken = at.least(n, half)
    real = op.Slice(real, [0], at.vector([taken]), [1])
    other = None if imaginary is None else op.Slice(imaginary, [0], at.vector([taken]), [1])
    k = at.count(taken)
    alone = op.Or(op.Equal(k, 0), op.Equal(op.Mul(k, 2), at.scalar(length)))
    weight = op.Div(op.Sub(2.0, op.Cast(alone, to=dtype)), op.Cast(at.scalar(length), to=dtype))
    cos, sin = _waves(at, length, length, taken, dtype)
    made = op.MatMul(op.Mul(real, weight), cos)
    if other is not None:
        made = op.Sub(made, op.MatMul(op.Mul(other, weight), sin))
    return at.reshape(made, [rows, length, 1])


@decomposition("DFT", kernel=_SLOW)
def dft(at: Lowering) -> Value:
    """MatMul with the matrices of cosines and sines."""
    op, x = at.op, at.input("input")
    inverse, onesided = bool(at.attr("inverse")), bool(at.attr("onesided"))
    before, n, behind, place = _around(at, x)
    given, known_length = at.optional_input("dft_length"), at.constant_input("dft_length")
    length: Size
    if known_length is not None:
        length = int(known_length.reshape(-1)[0])
    elif given is not None:
        length = op.Reshape(op.cast(given, ir.DataType.INT64), [1])
    else:
        length = at.mul(at.sub(n, 1), 2) if inverse and onesided else n
    parts = at.size(x, -1)
    apart = op.Transpose(at.reshape(x, [before, n, behind, parts]), perm=[0, 2, 1, 3])
    flat = at.reshape(apart, [at.mul(before, behind), n, parts])
    made = transform(at, flat, length, inverse=inverse, onesided=onesided)
    new = length if inverse and onesided else at.add(at.div(length, 2), 1) if onesided else length
    kinds = 1 if inverse and onesided else 2
    whole = op.Transpose(at.reshape(made, [before, behind, new, kinds]), perm=[0, 2, 1, 3])
    if isinstance(place, int):
        sizes = [at.size(x, a) for a in range(at.rank_of(x))]
        return at.reshape(whole, [*sizes[:place], new, *sizes[place + 1 : -1], kinds])
    shape = op.ScatterElements(op.Shape(x, end=-1), place, at.vector([new]), axis=0)
    return op.Reshape(whole, op.Concat(shape, [kinds], axis=0), allowzero=1)


def _around(at: Lowering, x: Value) -> tuple[Size, Size, Size, int | Value]:
    """Return how many elements lie before, along and behind the axis of a DFT, and the axis."""
    op, rank = at.op, at.rank(x)
    given = at.constant_input("axis") if op.opset >= 20 else np.array(at.attr("axis"))
    if given is None and at.optional_input("axis") is None:
        given = np.array(-2)
    if given is not None and rank is not None:
        axis = int(given.reshape(-1)[0]) % rank
        sizes = at.sizes(x)
        return at.mul(*sizes[:axis]), sizes[axis], at.mul(*sizes[axis + 1 : -1]), axis
    place = op.Reshape(at.input("axis"), [1]) if given is None else op.constant([int(given.reshape(-1)[0])])
    axes = op.Shape(op.Shape(x))
    place = op.Where(op.Less(place, 0), op.Add(place, axes), place)
    shape = op.Shape(x, end=-1)
    first = op.ReduceProd(op.Slice(shape, [0], place, [0]), keepdims=1)
    last = op.ReduceProd(op.Slice(shape, op.Add(place, 1), axes, [0]), keepdims=1)
    return first, op.Gather(shape, place, axis=0), last, place


@decomposition("STFT", kernel=_SLOW)
def stft(at: Lowering) -> Value:
    """Frames by Gather, times the window, then as DFT."""
    op, signal, window = at.op, at.input("signal"), at.optional_input("window")
    if at.rank_of(signal) == 2:
        signal = op.Unsqueeze(signal, [2])
        signal.shape = ir.Shape([*(at.dims(at.input("signal")) or ()), 1])
    known = at.constant_input("frame_length")
    length: Size
    if known is not None:
        length = int(known.reshape(-1)[0])
    elif at.optional_input("frame_length") is not None:
        length = op.Reshape(op.cast(at.input("frame_length"), ir.DataType.INT64), [1])
    else:
        length = at.size(window, 0) if window is not None else at.size(signal, 1)
    step_known = at.constant_input("frame_step")
    step: Size = (
        int(step_known.reshape(-1)[0])
        if step_known is not None
        else op.Reshape(op.cast(at.input("frame_step"), ir.DataType.INT64), [1])
    )
    frames = at.add(at.div(at.sub(at.size(signal, 1), length), step), 1)
    starts = op.Mul(at.count(frames), at.scalar(step))
    cut = op.Gather(signal, op.Add(at.reshape(starts, [-1, 1]), at.count(length)), axis=1)
    if window is not None:
        cut = op.Mul(cut, at.reshape(window, [-1, 1]))
    batch, parts = at.size(signal, 0), at.size(signal, 2)
    flat = at.reshape(cut, [at.mul(batch, frames), length, parts])
    onesided = bool(at.attr("onesided"))
    made = transform(at, flat, length, inverse=False, onesided=onesided)
    return at.reshape(made, [batch, frames, at.add(at.div(length, 2), 1) if onesided else length, 2])


@decomposition("MelWeightMatrix")
def mel_weight_matrix(at: Lowering) -> Value:
    """Triangles between neighbouring edges, which are equally far apart on the mel scale, rounded to bins."""
    op = at.op
    bins, length, rate = (
        op.Reshape(op.cast(at.input(n), ir.DataType.INT64), [1]) for n in ("num_mel_bins", "dft_length", "sample_rate")
    )
    low, high = (op.Reshape(op.Cast(at.input(n), to=DOUBLE), [1]) for n in ("lower_edge_hertz", "upper_edge_hertz"))

    def mel(hertz: Value) -> Value:
        return op.Mul(op.Log(op.Add(op.Div(hertz, 700.0), 1.0)), 2595.0 / math.log(10))

    start = mel(low)
    step = op.Div(op.Sub(mel(high), start), op.Cast(op.Add(bins, 2), to=DOUBLE))
    number = op.Cast(at.count(op.Add(bins, 2)), to=DOUBLE)
    edges = op.Add(op.Mul(number, step), start)
    hertz = op.Mul(op.Sub(op.Pow(op.constant(10.0, DOUBLE), op.Div(edges, 2595.0)), 1.0), 700.0)
    places = op.Floor(op.Div(op.Mul(hertz, op.Cast(op.Add(length, 1), to=DOUBLE)), op.Cast(rate, to=DOUBLE)))
    places.shape = ir.Shape([None])
    left, centre, right = (op.Slice(places, [i], [-2 + i if i < 2 else np.iinfo(np.int64).max], [0]) for i in range(3))
    for part in (left, centre, right):
        part.shape = ir.Shape([None])
    spectrum = op.Add(op.Div(length, 2), 1)
    k = at.reshape(op.Cast(at.count(spectrum), to=DOUBLE), [-1, 1])
    rise, fall = op.Sub(centre, left), op.Sub(right, centre)
    up = op.Div(op.Sub(k, left), op.Where(op.Equal(rise, 0.0), 1.0, rise))
    down = op.Div(op.Sub(right, k), op.Where(op.Equal(fall, 0.0), 1.0, fall))
    rising = op.Not(op.Or(op.Less(k, left), op.Less(centre, k)))
    falling = op.And(op.Not(op.Less(k, centre)), op.Less(k, right))
    ramp = op.Where(falling, down, op.Where(rising, op.Where(op.Equal(rise, 0.0), 1.0, up), 0.0))
    return op.Cast(ramp, to=ir.DataType(int(at.attr("output_datatype"))))
