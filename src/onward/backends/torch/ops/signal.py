"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onward.backends.graph import on_numpy
from onward.backends.torch.framework import number
from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import to_tensor, torch_type


def _complex(x: Tensor) -> Tensor:
    """Return a tensor whose last dimension is real (1) or real and imaginary (2) as complex numbers."""
    return (
        torch.complex(x[..., 0], torch.zeros_like(x[..., 0]))
        if x.shape[-1] == 1
        else torch.view_as_complex(x.contiguous())
    )


def _widened(x: Tensor) -> Tensor:
    """Return x in a type in which PyTorch has transforms on the CPU, which it has not of 16 bits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _dft(given: Tensor, length: Any, axis: int, inverse: bool, onesided: bool) -> Tensor:
    x = _widened(given)
    return _transformed(x, length, axis % x.ndim, inverse, onesided).to(given.dtype)


def _transformed(x: Tensor, length: Any, axis: int, inverse: bool, onesided: bool) -> Tensor:
    n = int(number(length)) if length is not None else None
    signal = _complex(x)
    if inverse and onesided:
        size = n if n is not None else 2 * (signal.shape[axis] - 1)
        return torch.fft.irfft(signal, size, axis).unsqueeze(-1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(signal, n, axis))
    if onesided:
        return torch.view_as_real(torch.fft.rfft(signal.real, n, axis))
    return torch.view_as_real(torch.fft.fft(signal, n, axis))


@op("DFT", since=17)
def dft_17(attributes: Attributes, x: Tensor, length: Any = None) -> Tensor:
    return _dft(x, length, attributes.get("axis", 1), bool(attributes["inverse"]), bool(attributes["onesided"]))


@op("DFT", since=20)
def dft(attributes: Attributes, x: Tensor, length: Any = None, axis: Any = None) -> Tensor:
    along = -2 if axis is None else int(number(axis))
    return _dft(x, length, along, bool(attributes["inverse"]), bool(attributes["onesided"]))


@op("STFT", since=17)
def stft(attributes: Attributes, x: Tensor, step: Any, window: Any = None, length: Any = None) -> Tensor:
    hop = int(number(step))
    size = int(number(length)) if length is not None else int(x.shape[1] if window is None else window.shape[0])
    # ONNX Runtime takes a real signal without the last dimension, too.
    frames = _complex(_widened(x if x.ndim == 3 else x.unsqueeze(2))).unfold(1, size, hop)
    if window is not None:
        frames = frames * _widened(window)
    onesided = attributes.get("onesided", 1)
    found = torch.fft.rfft(frames.real, size, -1) if onesided else torch.fft.fft(frames, size, -1)
    return torch.view_as_real(found).to(x.dtype)


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(attributes: Attributes, bins: Any, length: Any, rate: Any, lower: Any, upper: Any) -> Tensor:
    count, size, hertz = (int(number(v)) for v in (bins, length, rate))
    weights = on_numpy.mel_weights(count, size, hertz, float(number(lower)), float(number(upper)))
    return to_tensor(weights).to(torch_type(attributes.get("output_datatype", 1)))
