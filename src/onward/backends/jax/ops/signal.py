"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from onward.backends.graph import on_numpy
from onward.backends.jax.framework import number
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, jax_type


def _complex(x: Array) -> Array:
    """Return a tensor whose last dimension is real (1) or real and imaginary (2) as complex numbers."""
    return x[..., 0] + 1j * (x[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(x[..., 0]))


def _pairs(x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


def _dft(x: Array, length: Any, axis: int, inverse: bool, onesided: bool) -> Array:
    axis = axis % x.ndim
    n = int(number(length)) if length is not None else None
    signal = _complex(x)
    if inverse and onesided:
        size = n if n is not None else 2 * (signal.shape[axis] - 1)
        return jnp.fft.irfft(signal, size, axis)[..., None].astype(x.dtype)
    if onesided:
        return _pairs(jnp.fft.rfft(signal.real, n, axis)).astype(x.dtype)
    return _pairs((jnp.fft.ifft if inverse else jnp.fft.fft)(signal, n, axis)).astype(x.dtype)


@op("DFT", since=17)
def dft_17(attributes: Attributes, x: Array, length: Any = None) -> Array:
    return _dft(x, length, attributes.get("axis", 1), bool(attributes["inverse"]), bool(attributes["onesided"]))


@op("DFT", since=20)
def dft(attributes: Attributes, x: Array, length: Any = None, axis: Any = None) -> Array:
    along = -2 if axis is None else int(number(axis))
    return _dft(x, length, along, bool(attributes["inverse"]), bool(attributes["onesided"]))


@op("STFT", since=17)
def stft(attributes: Attributes, x: Array, step: Any, window: Any = None, length: Any = None) -> Array:
    hop = int(number(step))
    size = int(number(length)) if length is not None else int(x.shape[1] if window is None else window.shape[0])
    signal = _complex(x if x.ndim == 3 else x[..., None])  # ONNX Runtime takes a real signal without the last dimension
    starts = np.arange((signal.shape[1] - size) // hop + 1) * hop
    frames = signal[:, starts[:, None] + np.arange(size)]
    if window is not None:
        frames = frames * window
    if attributes.get("onesided", 1):
        return _pairs(jnp.fft.rfft(frames.real, size, -1)).astype(x.dtype)
    return _pairs(jnp.fft.fft(frames, size, -1)).astype(x.dtype)


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(attributes: Attributes, bins: Any, length: Any, rate: Any, lower: Any, upper: Any) -> Array:
    count, size, hertz = (int(number(v)) for v in (bins, length, rate))
    weights = on_numpy.mel_weights(count, size, hertz, float(number(lower)), float(number(upper)))
    return jnp.asarray(weights, jax_type(attributes.get("output_datatype", 1)))
