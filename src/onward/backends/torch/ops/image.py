"""Resampling of images: Resize, Upsample, GridSample, RoiAlign, and NonMaxSuppression."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.torch.host import Host, ints, number
from onward.backends.torch.registry import Attributes, op


def _floats(value: Any) -> list[float]:
    if isinstance(value, Host):
        return [float(v) for v in value.values]
    return [float(v) for v in torch.as_tensor(value).reshape(-1).tolist()]


def _source_positions(
    attributes: Attributes, size: int, new: int, scale: float, box: tuple[float, float]
) -> np.ndarray:
    """Return where each new sample lies on the old axis, as `coordinate_transformation_mode` says."""
    x = np.arange(new, dtype=np.float64)
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "align_corners":
        length = scale * size  # before it is rounded down to `new`
        return np.zeros(new) if length == 1 else x * (size - 1) / (length - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        start, end = box
        if new == 1:
            return np.full(1, 0.5 * (start + end) * (size - 1))
        return start * (size - 1) + x * (end - start) * (size - 1) / (new - 1)
    if mode == "pytorch_half_pixel" and new == 1:
        return np.zeros(1)
    if mode == "half_pixel_symmetric":
        adjustment = new / (scale * size)
        return size / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def _nearest(attributes: Attributes, position: np.ndarray) -> np.ndarray:
    mode = attributes.get("nearest_mode", "round_prefer_floor")
    if mode == "floor":
        return np.asarray(np.floor(position))
    if mode == "ceil":
        return np.asarray(np.ceil(position))
    return np.asarray(np.floor(position + 0.5) if mode == "round_prefer_ceil" else np.ceil(position - 0.5))


def _linear(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(1 - np.abs(x), 0))


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
        outer = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))

    return kernel


def _matrix(attributes: Attributes, size: int, new: int, scale: float, box: tuple[float, float]) -> np.ndarray:
    """Return the weights [new, size] by which an axis of `size` samples becomes one of `new`."""
    mode = attributes.get("mode", "nearest")
    position = _source_positions(attributes, size, new, scale, box)
    matrix = np.zeros((new, size))
    if mode == "nearest":
        matrix[np.arange(new), np.clip(_nearest(attributes, position), 0, size - 1).astype(np.int64)] = 1.0
        return _outside(attributes, matrix, position, size)
    kernel, reach = (_linear, 1) if mode == "linear" else (_cubic(attributes.get("cubic_coeff_a", -0.75)), 2)
    stretch = min(scale, 1.0) if attributes.get("antialias", 0) else 1.0
    width = math.ceil(reach / stretch)
    base = np.floor(position).astype(np.int64)
    exclude = bool(attributes.get("exclude_outside", 0))
    total = np.zeros(new)
    for offset in range(-width + 1 - (stretch != 1.0), width + 1 + (stretch != 1.0)):
        column = base + offset
        weight = kernel((column - position) * stretch)
        inside = (column >= 0) & (column < size)
        if exclude:
            weight = np.where(inside, weight, 0.0)
        np.add.at(matrix, (np.arange(new), np.clip(column, 0, size - 1)), weight)
        total += weight
    if exclude or stretch != 1.0:
        matrix /= np.where(total == 0, 1.0, total)[:, None]
    return _outside(attributes, matrix, position, size)


def _outside(attributes: Attributes, matrix: np.ndarray, position: np.ndarray, size: int) -> np.ndarray:
    """Mark rows whose sample lies outside of the image, which only tf_crop_and_resize distinguishes."""
    if attributes.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        matrix[(position < 0) | (position > size - 1)] = np.nan
    return matrix


@op("Resize", since=11)
def resize(attributes: Attributes, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    axes = attributes.get("axes")
    axes = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    old = [int(x.shape[a]) if not isinstance(x.shape[a], torch.SymInt) else x.shape[a] for a in axes]
    factors = _floats(scales) if scales is not None else []
    if factors:
        new = [n if f == 1.0 else math.floor(n * f) for n, f in zip(old, factors, strict=True)]
    else:
        new = ints(sizes)
        factors = [b / a if a != b else 1.0 for a, b in zip(old, new, strict=True)]
        policy = attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = (min if policy == "not_larger" else max)(factors)
            factors = [one] * len(axes)
            new = [math.floor(one * a + 0.5) for a in old]
    crop = attributes.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    corners = _floats(roi) if crop and roi is not None else [0.0] * len(axes) + [1.0] * len(axes)
    outside: Tensor | None = None
    dtype = x.dtype
    wide = x if x.is_floating_point() else x.double()
    for i, axis in enumerate(axes):
        if factors[i] == 1.0 and not crop:
            continue
        matrix = torch.from_numpy(_matrix(attributes, old[i], new[i], factors[i], (corners[i], corners[i + len(axes)])))
        missing = matrix.isnan().any(1)
        weights = matrix.nan_to_num().to(wide.dtype).to(x.device)
        wide = torch.tensordot(wide, weights, ([axis], [1])).movedim(-1, axis)
        if bool(missing.any()):
            shape = [new[i] if k == axis else 1 for k in range(x.ndim)]
            here = missing.reshape(shape).to(x.device)
            outside = here if outside is None else outside | here
    if outside is not None:
        wide = torch.where(outside, wide.new_tensor(attributes.get("extrapolation_value", 0.0)), wide)
    return wide.to(dtype) if dtype.is_floating_point else wide.round().to(dtype)


@op("Upsample", since=7)
def upsample(attributes: Attributes, x: Tensor, scales: Any = None) -> Tensor:
    given = attributes.get("scales") if scales is None else scales
    plain = Attributes(
        "Resize",
        "",
        13,
        {
            "mode": attributes.get("mode", "nearest"),
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
        1,
    )
    return resize(plain, x, None, given)


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
