"""Resampling of images: Resize, Upsample, GridSample, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.resampling import Interpolation, scales_by_sizes, sizes_by_scales
from onward.backends.torch.host import Host, ints, number
from onward.backends.torch.registry import Attributes, op


def _floats(value: Any) -> list[float]:
    if isinstance(value, Host):
        return [float(v) for v in value.values]
    return [float(v) for v in torch.as_tensor(value).reshape(-1).tolist()]


_RESIZE = [field.name for field in dataclasses.fields(Interpolation)]


@op("Resize", since=11)
def resize(attributes: Attributes, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    axes = attributes.get("axes")
    axes = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    old = [x.shape[a] for a in axes]
    factors = _floats(scales) if scales is not None else []
    if factors:
        new = sizes_by_scales(old, factors)
    else:
        new, factors = scales_by_sizes(old, ints(sizes), attributes.get("keep_aspect_ratio_policy", "stretch"))
    how = Interpolation(**{name: attributes[name] for name in _RESIZE if attributes[name] is not None})
    corners = _floats(roi) if how.crops and roi is not None else [0.0] * len(axes) + [1.0] * len(axes)
    boxes = list(zip(corners[: len(axes)], corners[len(axes) :], strict=True))
    return _resample(x, how, axes, new, factors, boxes, attributes.get("extrapolation_value", 0.0))


def _resample(
    x: Tensor,
    how: Interpolation,
    axes: list[int],
    new: list[int],
    factors: list[float],
    boxes: list[tuple[float, float]],
    fill: float = 0.0,
) -> Tensor:
    """Return `x` with a new size along each of `axes`."""
    outside: Tensor | None = None
    wide = x if x.is_floating_point() else x.double()
    for axis, size, factor, box in zip(axes, new, factors, boxes, strict=True):
        if factor == 1.0 and not how.crops:
            continue
        matrix = torch.from_numpy(how.matrix(int(x.shape[axis]), size, factor, box))
        missing = matrix.isnan().any(1)
        weights = matrix.nan_to_num().to(wide.dtype).to(x.device)
        wide = torch.tensordot(wide, weights, ([axis], [1])).movedim(-1, axis)
        if bool(missing.any()):
            here = missing.reshape([size if k == axis else 1 for k in range(x.ndim)]).to(x.device)
            outside = here if outside is None else outside | here
    if outside is not None:
        wide = torch.where(outside, wide.new_tensor(fill), wide)
    return wide if x.is_floating_point() else wide.round().to(x.dtype)


@op("Upsample", since=7)
def upsample(attributes: Attributes, x: Tensor, scales: Any = None) -> Tensor:
    factors = _floats(attributes["scales"] if scales is None else scales)
    how = Interpolation(attributes["mode"], "asymmetric", "floor")
    axes = list(range(x.ndim))
    return _resample(x, how, axes, sizes_by_scales(list(x.shape), factors), factors, [(0.0, 1.0)] * x.ndim)


@op("GridSample", since=16)
def grid_sample(attributes: Attributes, x: Tensor, grid: Tensor) -> Tensor:
    modes = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic",
             "bicubic": "bicubic"}  # fmt: skip
    mode = modes[attributes.get("mode", "linear")]
    padding, align = attributes.get("padding_mode", "zeros"), bool(attributes.get("align_corners", 0))
    return F.grid_sample(x, grid.to(x.dtype), mode, padding, align)


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
    a, b = boxes[..., :2], boxes[..., 2:]
    if attributes.get("center_point_box", 0):
        a, b = a.flip(-1) - b.flip(-1) / 2, a.flip(-1) + b.flip(-1) / 2
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    area = (high - low).prod(-1)
    chosen = []
    for n in range(scores.shape[0]):
        for c in range(scores.shape[1]):
            order = torch.argsort(scores[n, c], descending=True, stable=True).tolist()
            if least is not None:
                order = [i for i in order if float(scores[n, c, i]) > float(number(least))]
            kept: list[int] = []
            while order and len(kept) < limit:
                i = order.pop(0)
                kept.append(i)
                size = (torch.minimum(high[n, i], high[n]) - torch.maximum(low[n, i], low[n])).clamp(min=0).prod(-1)
                union = area[n, i] + area[n] - size
                order = [j for j in order if float(size[j]) <= threshold * float(union[j])]
            chosen += [[n, c, i] for i in kept]
    return torch.tensor(chosen, dtype=torch.int64).reshape(-1, 3)
