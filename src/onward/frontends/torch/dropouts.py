"""Express channel dropout and alpha dropout with ONNX's Dropout; PyTorch's exporter would also drop in evaluation.

The mask is the element-wise dropout of a tensor of ones: it stays ones in evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from onward.frontends.torch.replacements import replaced

_SATURATION = 1.7580993408473766  # -SELU(-∞), PyTorch's constant


@contextlib.contextmanager
def decompose_dropouts() -> Iterator[None]:
    """Replace the dropouts of `torch.nn.functional` that are not element-wise by the element-wise one."""
    written: dict[str, Callable[..., Any]] = {
        "dropout1d": _channels(unbatched=2),
        "dropout2d": _channels(unbatched=0),
        "dropout3d": _channels(unbatched=4),
        "alpha_dropout": _alpha(lambda x: x),
        "feature_alpha_dropout": _alpha(_one_of_each_channel),
    }
    with replaced(F, written):
        yield


def _one_of_each_channel(x: Any) -> Any:
    return x[(slice(None), slice(None), *[slice(0, 1)] * (x.ndim - 2))]


def _channels(unbatched: int) -> Callable[..., Any]:
    """Return a dropout of whole channels; inputs of rank `unbatched` have no batch."""

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0.0:
            return input
        x = input.unsqueeze(0) if input.ndim == unbatched else input
        dropped = x * F.dropout(torch.ones_like(_one_of_each_channel(x)), p, True)
        return dropped.squeeze(0) if input.ndim == unbatched else dropped

    return dropout


def _alpha(of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return an alpha dropout, with one mask element for each element of `of(x)`.

    Dropped elements get SELU's lowest value; an affine map then restores mean and variance.
    """

    def dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
        if not training or p == 0.0:
            return input
        if p == 1.0:
            return F.dropout(input, 1.0, True)
        mask = F.dropout(torch.ones_like(of(input)), p, True)  # in training 0 or 1 / (1 - p), in evaluation 1
        scale = ((1.0 - p) * (1.0 + p * _SATURATION**2)) ** -0.5
        kept = input * scale + _SATURATION * scale * p
        lost = torch.full_like(input, -_SATURATION * scale * (1.0 - p))
        return torch.where(mask == 1.0, input, torch.where(mask > 0.0, kept, lost))

    return dropout
