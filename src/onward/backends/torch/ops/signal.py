"""Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onward.backends.torch.host import number
from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import torch_type


def _complex(x: Tensor) -> Tensor:
    """Return a tensor whose last dimension is real (1) or real and imaginary (2) as complex numbers."""
    return (
        torch.complex(x[..., 0], torch.zeros_like(x[..., 0]))
        if x.shape[-1] == 1
        else torch.view_as_complex(x.contiguous())
    )


def _dft(x: Tensor, length: Any, axis: int, inverse: bool, onesided: bool) -> Tensor:
    axis = axis % x.ndim
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
    frames = _complex(x if x.ndim == 3 else x.unsqueeze(2)).unfold(1, size, hop)
    if window is not None:
        frames = frames * window
    if attributes.get("onesided", 1):
        return torch.view_as_real(torch.fft.rfft(frames.real, size, -1))
    return torch.view_as_real(torch.fft.fft(frames, size, -1))


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(attributes: Attributes, bins: Any, length: Any, rate: Any, lower: Any, upper: Any) -> Tensor:
    """Return triangular filters, evenly spaced on the mel scale, between whole bins as the standard defines."""
    count, size = int(number(bins)), int(number(length))
    low, high = (2595.0 * math.log10(1.0 + float(number(v)) / 700.0) for v in (lower, upper))
    mels = torch.arange(count + 2, dtype=torch.float64) * ((high - low) / (count + 2)) + low
    hertz = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    feet = torch.floor((size + 1) * hertz / int(number(rate))).to(torch.int64).unsqueeze(0)
    before, peak, after = feet[:, :-2], feet[:, 1:-1], feet[:, 2:]
    bin_ = torch.arange(size // 2 + 1).unsqueeze(1)
    rising = (bin_ - before) / (peak - before).clamp(min=1)
    falling = (after - bin_) / (after - peak).clamp(min=1)
    weights = torch.where((bin_ >= before) & (bin_ <= peak), rising, torch.zeros((), dtype=rising.dtype))
    weights = torch.where((bin_ == peak) & (before == peak), torch.ones((), dtype=rising.dtype), weights)
    weights = torch.where((bin_ >= peak) & (bin_ < after), falling, weights)
    return weights.to(torch_type(attributes.get("output_datatype", 1)))
