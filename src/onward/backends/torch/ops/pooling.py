"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.graph.windows import Pads, pooled, unpooled, window_of
from onward.backends.torch.framework import ints
from onward.backends.torch.ops.convolution import pad_spatial
from onward.backends.torch.registry import Attributes, op


def _windows(attributes: Attributes, x: Tensor, fill: float) -> tuple[Tensor, Tensor, Pads]:
    """Return the padded input's windows (…, outputs, kernel), the flat positions they come from, and the pads."""
    window = window_of(attributes, x.shape[2:], attributes["kernel_shape"])
    counts, extended = pooled(attributes, x.shape[2:], window)
    kernel, rank = window.kernel, len(counts)
    padded = pad_spatial(x, extended, fill)
    index = torch.zeros([1] * (2 * rank), dtype=torch.int64, device=x.device)
    for i in range(rank):
        where = (
            torch.arange(counts[i], device=x.device).unsqueeze(1) * window.strides[i]
            + torch.arange(kernel[i], device=x.device).unsqueeze(0) * window.dilations[i]
        )
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = counts[i], kernel[i]
        index = index * padded.shape[2 + i] + where.reshape(shape)
    index = index.reshape(*counts, -1)
    flat = padded.flatten(2)
    return flat[:, :, index], index, extended


@op("MaxPool")
def max_pool(attributes: Attributes, x: Tensor) -> Any:
    simple = _simple_pool(attributes, x)
    if simple is not None and attributes.outputs == 1 and x.is_floating_point():
        kernel, strides, pads, dilations = simple
        function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(kernel)]
        return function(x, kernel, strides, pads, dilations)
    low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    wide = x if x.is_floating_point() else x.to(torch.int64)
    windows, index, pads = _windows(attributes, wide, low)
    values, chosen = windows.max(-1)
    if attributes.outputs == 1:
        return values.to(x.dtype)
    position = torch.gather(index.expand(*values.shape, -1), -1, chosen.unsqueeze(-1)).squeeze(-1)
    return values.to(x.dtype), _unpadded(position, x, pads, attributes.get("storage_order", 0))


def _simple_pool(attributes: Attributes, x: Tensor) -> Any:
    """Return (kernel, strides, pads, dilations) where PyTorch's own pooling means the same, else None."""
    window = window_of(attributes, x.shape[2:], attributes["kernel_shape"])
    fits = window.symmetric and all(2 * b <= k for (b, _), k in zip(window.pads, window.kernel, strict=True))
    if not fits or attributes.get("ceil_mode", 0) or len(window.kernel) > 3:
        return None
    return window.kernel, window.strides, [b for b, _ in window.pads], window.dilations


def _unpadded(position: Tensor, x: Tensor, pads: Pads, order: int) -> Tensor:
    """Return flat positions in the whole unpadded tensor, as ONNX's Indices."""
    sizes = [x.shape[2 + i] + sum(p) for i, p in enumerate(pads)]
    coordinates: list[Tensor] = []
    for i in reversed(range(len(sizes))):
        coordinates.insert(0, position % sizes[i] - pads[i][0])
        position = position // sizes[i]
    flat = torch.zeros_like(coordinates[0])
    axes = range(len(sizes)) if not order else reversed(range(len(sizes)))
    for i in axes:
        flat = flat * x.shape[2 + i] + coordinates[i]
    area = math.prod(x.shape[2:])
    lead = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(x.shape[0], x.shape[1], *[1] * len(sizes))
    return flat + lead * area


@op("AveragePool")
def average_pool(attributes: Attributes, x: Tensor) -> Tensor:
    windows, _, pads = _windows(attributes, x, 0.0)
    ones = x.new_ones(1, 1, *x.shape[2:])  # one image, even if the batch is empty
    if attributes.get("count_include_pad", 0):
        given = window_of(attributes, x.shape[2:], attributes["kernel_shape"]).pads
        ones = pad_spatial(ones, given, 1.0)
        ones = pad_spatial(ones, [(0, p[1] - g[1]) for p, g in zip(pads, given, strict=True)], 0.0)
        flat = ones.reshape(1, 1, -1)
        _, index, _ = _windows(attributes, x.new_ones(1, 1, *x.shape[2:]), 0.0)
        count = flat[:, :, index].sum(-1)
    else:
        count = _windows(attributes, ones, 0.0)[0].sum(-1)
    return windows.sum(-1) / count


@op("LpPool")
def lp_pool(attributes: Attributes, x: Tensor) -> Tensor:
    windows, _, _ = _windows(attributes, x, 0.0)
    return torch.linalg.vector_norm(windows, attributes["p"], -1)


@op("GlobalAveragePool")
def global_average_pool(attributes: Attributes, x: Tensor) -> Tensor:
    return x.mean(list(range(2, x.ndim)), keepdim=True)


@op("GlobalMaxPool")
def global_max_pool(attributes: Attributes, x: Tensor) -> Tensor:
    largest = x.flatten(2).max(-1).values  # the first of equal values gets the gradient
    return largest.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


@op("GlobalLpPool")
def global_lp_pool(attributes: Attributes, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, attributes["p"], list(range(2, x.ndim)), keepdim=True)


@op("MaxUnpool")
def max_unpool(attributes: Attributes, x: Tensor, indices: Tensor, shape: Any = None) -> Tensor:
    small = [x.shape[0], x.shape[1], *unpooled(attributes, x.shape[2:])]
    size = small if shape is None else ints(shape)
    # The indices are positions in the original tensor, which has the inferred size.
    where = indices.reshape(-1)
    if size != small:
        strides_small = [math.prod(small[i + 1 :]) for i in range(len(small))]
        strides_size = [math.prod(size[i + 1 :]) for i in range(len(size))]
        where = sum((where // a % n) * b for a, n, b in zip(strides_small, small, strides_size, strict=True))
    out = torch.zeros(math.prod(size), dtype=x.dtype, device=x.device)
    return out.scatter(0, where, x.reshape(-1)).reshape(size)
