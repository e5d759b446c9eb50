"""Cases of autodiff/rules/signal.py."""

from __future__ import annotations

import numpy as np
import torch as _torch

from cases import array, case


def number(value):
    return np.array(value, dtype=np.int64)


def _complex(value):
    return _torch.view_as_complex(value.contiguous()) if value.shape[-1] == 2 else value[..., 0]


def _fft(function, axis, n=None):
    def compute(input, **_):
        result = function(_complex(input), n=n, dim=axis)
        return _torch.view_as_real(result) if result.is_complex() else result[..., None]

    return compute


REAL, COMPLEX = array(2, 5, 1), array(2, 5, 2)

CASES = [
    case("DFT", "real", input=REAL, torch=_fft(_torch.fft.fft, 1)),
    case("DFT", "complex", input=COMPLEX, axis=number(1), constants=["axis"], torch=_fft(_torch.fft.fft, 1)),
    case("DFT", "inverse", input=COMPLEX, inverse=1, torch=_fft(_torch.fft.ifft, 1)),
    case("DFT", "onesided", input=REAL, onesided=1, torch=_fft(_torch.fft.rfft, 1)),
    case("DFT", "onesided even", input=array(2, 4, 1), onesided=1, torch=_fft(_torch.fft.rfft, 1)),
    case("DFT", "longer", input=REAL, dft_length=number(7), torch=_fft(_torch.fft.fft, 1, 7)),
    case("DFT", "shorter", input=COMPLEX, dft_length=number(3), torch=_fft(_torch.fft.fft, 1, 3)),
    case("DFT", "shorter onesided", input=REAL, dft_length=number(4), onesided=1, torch=_fft(_torch.fft.rfft, 1, 4)),
    case("DFT", "longer inverse", input=COMPLEX, dft_length=number(6), inverse=1, torch=_fft(_torch.fft.ifft, 1, 6)),
    case("DFT", "to real", input=array(2, 3, 2), inverse=1, onesided=1, torch=_fft(_torch.fft.irfft, 1)),
    case("DFT", "to real, odd", input=array(2, 3, 2), inverse=1, onesided=1, dft_length=number(5),
         torch=_fft(_torch.fft.irfft, 1, 5)),
    case("DFT", "two axes", kind="edge", input=array(2, 3, 2, 1), axis=number(-3), constants=["axis"],
         torch=_fft(_torch.fft.fft, 1)),
    case("DFT", "axis at run time", kind="edge", input=array(2, 3, 2, 1), axis=number(-3), dft_length=number(4)),
    case("DFT", "to real, axis at run time", kind="edge", input=array(3, 2, 2), axis=number(0), inverse=1, onesided=1),
    case("DFT", "of length one", kind="edge", input=array(2, 1, 2)),
    case("DFT", "opset 17", opset=18, input=array(2, 3, 2, 1), axis=2, onesided=1, torch=_fft(_torch.fft.rfft, 2)),
    case("DFT", "opset 17 inverse", opset=17, input=array(2, 3, 2), inverse=1, dft_length=number(4),
         torch=_fft(_torch.fft.ifft, 1, 4)),
    case("DFT", "large", kind="special", input=np.array([[[1e300], [1.0]]]), expected={"input": [[[2.0], [0.0]]]},
         dtypes=(np.float64,), onnxruntime="the number is too large for float32"),
    case("STFT", "signal and window", signal=array(2, 9, 1), frame_step=number(2), window=array(4, seed=1),
         frame_length=number(4)),
    case("STFT", "no window", signal=array(1, 8, 1), frame_step=number(3), frame_length=number(4)),
    case("STFT", "no frame_length", signal=array(2, 7, 1), frame_step=number(2), window=array(3, seed=1)),
    case("STFT", "two-sided", signal=array(1, 8, 1), frame_step=number(3), window=array(4, seed=1), onesided=0),
    case("STFT", "complex", signal=array(1, 8, 2), frame_step=number(3), window=array(4, seed=1), onesided=0),
    case("STFT", "without a last dimension", signal=array(2, 9), frame_step=number(2), window=array(4, seed=1),
         frame_length=number(4), constants=["frame_step", "frame_length"], onesided=1,
         torch=lambda signal, window: _torch.view_as_real(_torch.stft(
             signal, 4, 2, window=window, center=False, return_complex=True).transpose(1, 2))),
    case("STFT", "one frame", kind="edge", signal=array(1, 4, 1), frame_step=number(1), window=array(4, seed=1)),
    case("STFT", "gaps between frames", kind="edge", signal=array(1, 9, 1), frame_step=number(5),
         window=array(3, seed=1)),
    case("STFT", "constant parameters", signal=array(1, 8, 1), frame_step=number(2), window=array(4, seed=1),
         frame_length=number(4), constants=["frame_step", "frame_length"], onesided=1,
         torch=lambda signal, window: _torch.view_as_real(_torch.stft(
             signal[..., 0], 4, 2, window=window, center=False, return_complex=True).transpose(1, 2))),
    case("STFT", "large", kind="special", signal=np.array([[[1e300], [1.0]]]), frame_step=number(1),
         frame_length=number(2), expected={"signal": [[[2.0], [0.0]]]}, dtypes=(np.float64,),
         onnxruntime="the number is too large for float32"),
]  # fmt: skip
