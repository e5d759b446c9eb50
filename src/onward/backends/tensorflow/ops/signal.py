"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from onward.backends.graph import on_numpy
from onward.backends.tensorflow.framework import number
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import tf_type


def _complex(x: tf.Tensor) -> tf.Tensor:
    """Return a tensor whose last dimension is real (1) or real and imaginary (2) as complex numbers."""
    wide = tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x
    return tf.complex(wide[..., 0], tf.zeros_like(wide[..., 0]) if x.shape[-1] == 1 else wide[..., 1])


def _pair(signal: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.math.real(signal), tf.math.imag(signal)], -1)


def _of_length(signal: tf.Tensor, size: int) -> tf.Tensor:
    """Return the last axis cut or filled with zeros."""
    more = max(size - signal.shape[-1], 0)
    return tf.pad(signal[..., :size], [*[[0, 0]] * (signal.shape.rank - 1), [0, more]])


def _dft(x: tf.Tensor, length: Any, axis: int, inverse: bool, onesided: bool) -> tf.Tensor:
    signal = _complex(x)
    rank = signal.shape.rank
    axis = axis % x.shape.rank
    last = [*(a for a in range(rank) if a != axis), axis]
    back = [last.index(a) for a in range(rank)]
    moved = tf.transpose(signal, last)
    size = moved.shape[-1] if length is None else int(number(length))
    if inverse and onesided:
        size = size if length is not None else 2 * (size - 1)
        found = tf.signal.irfft(_of_length(moved, size // 2 + 1), [size])
        result = tf.expand_dims(tf.transpose(found, back), -1)
    else:
        moved = _of_length(moved, size)
        if onesided:
            found = tf.signal.rfft(tf.math.real(moved), [size])
        else:
            found = tf.signal.ifft(moved) if inverse else tf.signal.fft(moved)
        result = _pair(tf.transpose(found, back))
    return tf.cast(result, x.dtype)


@op("DFT", since=17)
def dft_17(attributes: Attributes, x: tf.Tensor, length: Any = None) -> tf.Tensor:
    return _dft(x, length, attributes.get("axis", 1), bool(attributes["inverse"]), bool(attributes["onesided"]))


@op("DFT", since=20)
def dft(attributes: Attributes, x: tf.Tensor, length: Any = None, axis: Any = None) -> tf.Tensor:
    along = -2 if axis is None else int(number(axis))
    return _dft(x, length, along, bool(attributes["inverse"]), bool(attributes["onesided"]))


@op("STFT", since=17)
def stft(attributes: Attributes, x: tf.Tensor, step: Any, window: Any = None, length: Any = None) -> tf.Tensor:
    hop = int(number(step))
    size = int(number(length)) if length is not None else int(x.shape[1] if window is None else window.shape[0])
    # ONNX Runtime takes a real signal without the last dimension, too.
    frames = tf.signal.frame(_complex(x if x.shape.rank == 3 else tf.expand_dims(x, 2)), size, hop, axis=1)
    if window is not None:
        frames = frames * tf.cast(window, frames.dtype)
    if attributes.get("onesided", 1):
        return tf.cast(_pair(tf.signal.rfft(tf.math.real(frames), [size])), x.dtype)
    return tf.cast(_pair(tf.signal.fft(frames)), x.dtype)


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(attributes: Attributes, bins: Any, length: Any, rate: Any, lower: Any, upper: Any) -> tf.Tensor:
    counts = [int(number(v)) for v in (bins, length, rate)]
    weights = on_numpy.mel_weights(*counts, *(float(number(v)) for v in (lower, upper)))
    return tf.cast(tf.constant(weights), tf_type(attributes.get("output_datatype", 1)))
