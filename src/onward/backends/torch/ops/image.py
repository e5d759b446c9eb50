"""Resampling of images: Resize, Upsample, GridSample, AffineGrid, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.graph import on_numpy, sampling
from onward.backends.graph.resize import NewAxis, resized, upsampled
from onward.backends.graph.shapes import along
from onward.backends.torch.framework import TORCH, ints, number
from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import to_numpy, to_tensor


@op("Resize", since=11)
def resize(attributes: Attributes, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    changes = resized(TORCH, attributes, x.shape, roi, scales, sizes)
    return _resample(x, changes, attributes.get("extrapolation_value", 0.0))


@op("Upsample", since=7)
def upsample(attributes: Attributes, x: Tensor, scales: Any = None) -> Tensor:
    return _resample(x, upsampled(TORCH, attributes, x.shape, scales))


def _resample(x: Tensor, changes: Iterable[NewAxis], fill: float = 0.0) -> Tensor:
    """Return `x` with some axes replaced."""
    outside: Tensor | None = None
    wide = x if x.is_floating_point() else x.double()
    for axis, matrix, missing in changes:
        weights = torch.from_numpy(matrix).to(wide.dtype).to(x.device)
        wide = torch.tensordot(wide, weights, ([axis], [1])).movedim(-1, axis)
        if missing.any():
            here = torch.from_numpy(missing).reshape(along(axis, x.ndim)).to(x.device)
            outside = here if outside is None else outside | here
    if outside is not None:
        wide = torch.where(outside, wide.new_tensor(fill), wide)
    return wide if x.is_floating_point() else wide.round().to(x.dtype)


@op("GridSample", since=16)
def grid_sample(attributes: Attributes, x: Tensor, grid: Tensor) -> Tensor:
    modes = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic",
             "bicubic": "bicubic"}  # fmt: skip
    mode = modes[attributes.get("mode", "linear")]
    padding, align = attributes.get("padding_mode", "zeros"), bool(attributes.get("align_corners", 0))
    return F.grid_sample(x, grid.to(x.dtype), mode, padding, align)


@op("AffineGrid", since=20)
def affine_grid(attributes: Attributes, theta: Tensor, size: Any) -> Tensor:
    """The standard's body squeezes all axes of size 1, and so fails for a batch of one."""
    return F.affine_grid(theta, ints(size), bool(attributes.get("align_corners", 0)))


class Sampling(sampling.RoiAlign):
    """RoiAlign on PyTorch."""

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        return x.long() if dtype == "int64" else x.to(dtype)

    def floor(self, x: Tensor) -> Tensor:
        return x.detach().floor()

    def where(self, condition: Tensor, number: float, x: Tensor) -> Tensor:
        return x.masked_fill(condition, number)

    def take(self, x: Tensor, index: Tensor, axis: int) -> Tensor:
        return x[(slice(None),) * axis + (index,)]

    def pool(self, x: Tensor, axes: tuple[int, ...], average: bool) -> Tensor:
        return x.mean(axes) if average else x.amax(axes)

    def reshape(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        return x.reshape(*sizes)

    def zeros(self, sizes: Sequence[Any], like: Tensor) -> Tensor:
        return like.new_zeros(*sizes)


op("RoiAlign", since=10)(Sampling(TORCH).roi_align)


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    attributes: Attributes, boxes: Tensor, scores: Tensor, most: Any = None, overlap: Any = None, least: Any = None
) -> Tensor:
    limit = 0 if most is None else int(number(most))
    threshold = 0.0 if overlap is None else float(number(overlap))
    score = None if least is None else float(number(least))
    return to_tensor(
        on_numpy.non_max_suppression(attributes, to_numpy(boxes), to_numpy(scores), limit, threshold, score)
    )
