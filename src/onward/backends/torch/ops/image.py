"""Resampling of images: Resize, Upsample, GridSample, AffineGrid, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.graph import on_numpy
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


@op("RoiAlign", since=10)
def roi_align(attributes: Attributes, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    height, width = attributes["output_height"], attributes["output_width"]
    ratio, scale = attributes.get("sampling_ratio", 0), attributes.get("spatial_scale", 1.0)
    shifted = attributes.opset >= 16 and attributes.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    offset = 0.5 if shifted else 0.0
    results = []
    for roi, index in zip(rois, batch.tolist(), strict=True):
        x1, y1, x2, y2 = ((roi * scale) - offset).unbind()
        w, h = x2 - x1, y2 - y1
        if not shifted:
            w, h = w.clamp(min=1.0), h.clamp(min=1.0)
        count_y = ratio if ratio > 0 else max(math.ceil(float(h) / height), 1)
        count_x = ratio if ratio > 0 else max(math.ceil(float(w) / width), 1)
        steps_y = (torch.arange(height * count_y, device=x.device).to(x.dtype) + 0.5) / (height * count_y)
        steps_x = (torch.arange(width * count_x, device=x.device).to(x.dtype) + 0.5) / (width * count_x)
        corners, weights = _bilinear(x[index], y1 + steps_y * h, x1 + steps_x * w)
        if attributes.get("mode", "avg") == "avg":
            samples = sum(c * k for c, k in zip(corners, weights, strict=True))
            grid = samples.reshape(-1, height, count_y, width, count_x)
            results.append(grid.mean((2, 4)))
        else:
            best = torch.stack([c * k for c, k in zip(corners, weights, strict=True)]).amax(0)
            results.append(best.reshape(-1, height, count_y, width, count_x).amax((2, 4)))
    if not results:
        return x.new_zeros(0, x.shape[1], height, width)
    return torch.stack(results)


def _bilinear(image: Tensor, y: Tensor, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the four corners around each point of a grid, and their weights."""
    h, w = image.shape[1:]
    inside = ((y >= -1) & (y <= h)).unsqueeze(1) & ((x >= -1) & (x <= w)).unsqueeze(0)
    y, x = y.clamp(0, h - 1), x.clamp(0, w - 1)
    top, left = y.floor().long().clamp(max=h - 1), x.floor().long().clamp(max=w - 1)
    bottom, right = (top + 1).clamp(max=h - 1), (left + 1).clamp(max=w - 1)
    ly, lx = (y - top).unsqueeze(1), (x - left).unsqueeze(0)
    corners = [image[:, r][:, :, c] for r in (top, bottom) for c in (left, right)]
    weights = [(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx]
    return corners, [k * inside for k in weights]


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
