"""Conv, ConvTranspose, DeformConv and Col2Im."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.graph.windows import Pads, transposed, window_of
from onward.backends.torch.framework import ints
from onward.backends.torch.registry import Attributes, op

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def pad_spatial(x: Tensor, pads: Pads, value: float = 0.0) -> Tensor:
    """Pad the spatial axes, which are all but the first two."""
    if not any(v for pair in pads for v in pair):
        return x
    return F.pad(x, [v for pair in reversed(pads) for v in pair], value=value)


@op("Conv")
def conv(attributes: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    window = window_of(attributes, x.shape[2:], w.shape[2:])
    function, groups = _CONV[w.ndim - 2], attributes["group"]
    if window.symmetric:
        return function(x, w, b, window.strides, [p[0] for p in window.pads], window.dilations, groups)
    return function(pad_spatial(x, window.pads), w, b, window.strides, 0, window.dilations, groups)


@op("ConvTranspose")
def conv_transpose(attributes: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    window, crop = transposed(attributes, x.shape[2:], w.shape[2:])
    rank = w.ndim - 2
    y = _TRANSPOSED[rank](x, w, None, window.strides, 0, 0, attributes["group"], window.dilations)
    y = pad_spatial(y, crop)
    return y if b is None else y + b.reshape([-1] + [1] * rank)


@op("DeformConv", since=19)
def deform_conv(
    attributes: Attributes, x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """A convolution whose taps are moved by `offset` and read by linear interpolation, zero outside the image."""
    rank, groups, shifts = w.ndim - 2, attributes["group"], attributes["offset_group"]
    image, sizes = list(offset.shape[2:]), list(x.shape[2:])
    window = window_of(attributes, sizes, w.shape[2:])
    kernel = window.kernel
    n, channels = x.shape[0], x.shape[1]
    moved = offset.reshape(n, shifts, *kernel, rank, *image)
    at = []
    for axis in range(rank):
        taps = torch.arange(kernel[axis], device=x.device) * window.dilations[axis]
        places = torch.arange(image[axis], device=x.device) * window.strides[axis] - window.pads[axis][0]
        before = [1] * axis + [-1] + [1] * (rank - axis - 1)
        start = taps.reshape(before + [1] * rank) + places.reshape([1] * rank + before)
        at.append(start + moved.select(2 + rank, axis))
    low = [torch.floor(a.detach()).to(torch.int64) for a in at]
    flat = x.flatten(2).unflatten(1, (shifts, channels // shifts))
    columns: Tensor | None = None
    for corner in itertools.product((0, 1), repeat=rank):
        index = [i + side for i, side in zip(low, corner, strict=True)]
        inside = torch.ones_like(index[0], dtype=torch.bool)
        weight: Tensor | None = None
        place = torch.zeros_like(index[0])
        for axis, i in enumerate(index):
            inside = inside & (i >= 0) & (i < sizes[axis])
            share = 1 - (at[axis] - i).abs()
            weight = share if weight is None else weight * share
            place = place * sizes[axis] + i.clamp(0, sizes[axis] - 1)
        assert weight is not None
        chosen = place.flatten(2).unsqueeze(2).expand(-1, -1, flat.shape[2], -1)
        read = flat.gather(3, chosen) * torch.where(inside, weight, 0).flatten(2).unsqueeze(2)
        columns = read if columns is None else columns + read
    assert columns is not None
    if mask is not None:
        columns = columns * mask.reshape(n, shifts, 1, math.prod(kernel) * math.prod(image))
    rows = columns.reshape(n, groups, channels // groups * math.prod(kernel), math.prod(image))
    y = torch.matmul(w.reshape(groups, w.shape[0] // groups, -1), rows).reshape(n, w.shape[0], *image)
    return y if b is None else y + b.reshape([-1] + [1] * rank)


@op("Col2Im")
def col2im(attributes: Attributes, x: Tensor, image: Tensor, block: Tensor) -> Tensor:
    sizes, kernel = ints(image), ints(block)
    rank = len(sizes)
    window = window_of(attributes, sizes, kernel)
    padded = [n + sum(p) for n, p in zip(sizes, window.pads, strict=True)]
    counts = [(padded[i] - window.span(i)) // window.strides[i] + 1 for i in range(rank)]
    index = torch.zeros([1] * (2 * rank), dtype=torch.int64)
    for i in range(rank):
        taps = torch.arange(kernel[i]).unsqueeze(1) * window.dilations[i]
        places = taps + torch.arange(counts[i]).unsqueeze(0) * window.strides[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = kernel[i], counts[i]
        index = index * padded[i] + places.reshape(shape)
    n, channels = x.shape[0], x.shape[1] // math.prod(kernel)
    values = x.reshape(n, channels, math.prod(kernel) * x.shape[2])
    out = torch.zeros(n, channels, math.prod(padded), dtype=x.dtype, device=x.device)
    out = out.scatter_add(2, index.reshape(1, 1, -1).expand(n, channels, -1).to(x.device), values)
    return pad_spatial(out.reshape(n, channels, *padded), [(-before, -after) for before, after in window.pads])
