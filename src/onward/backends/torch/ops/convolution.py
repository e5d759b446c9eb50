"""Conv, ConvTranspose, DeformConv and Col2Im."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.torch.registry import Attributes, op

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def pads_of(
    attributes: Attributes, sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int]
) -> list[tuple[int, int]]:
    """Return (before, after) per spatial axis, from `pads` or `auto_pad`."""
    mode = attributes.get("auto_pad", "NOTSET")
    rank = len(kernel)
    if mode in ("NOTSET", ""):
        flat = attributes.get("pads") or [0] * (2 * rank)
        return [(flat[i], flat[i + rank]) for i in range(rank)]
    if mode == "VALID":
        return [(0, 0)] * rank
    found = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return found


def pad_spatial(x: Tensor, pads: list[tuple[int, int]], value: float = 0.0) -> Tensor:
    """Pad the spatial axes, which are all but the first two."""
    if not any(v for pair in pads for v in pair):
        return x
    return F.pad(x, [v for pair in reversed(pads) for v in pair], value=value)


@op("Conv")
def conv(attributes: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = w.ndim - 2
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    pads = pads_of(attributes, list(x.shape[2:]), list(w.shape[2:]), strides, dilations)
    groups = attributes["group"]
    if all(before == after for before, after in pads):
        return _CONV[rank](x, w, b, strides, [p[0] for p in pads], dilations, groups)
    return _CONV[rank](pad_spatial(x, pads), w, b, strides, 0, dilations, groups)


@op("ConvTranspose")
def conv_transpose(attributes: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = w.ndim - 2
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    extra = attributes.get("output_padding") or [0] * rank
    full = [(x.shape[2 + i] - 1) * strides[i] + dilations[i] * (w.shape[2 + i] - 1) + 1 + extra[i] for i in range(rank)]
    wanted = attributes.get("output_shape")
    mode = attributes.get("auto_pad", "NOTSET")
    if wanted is not None:
        wanted = wanted[-rank:]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [min(x.shape[2 + i] * strides[i], full[i]) for i in range(rank)]
    if wanted is not None:
        pads = []
        for i in range(rank):
            total = max(0, full[i] - wanted[i])
            before = total // 2 if mode == "SAME_UPPER" else total - total // 2
            pads.append((before, full[i] - wanted[i] - before))
    else:
        flat = attributes.get("pads") or [0] * (2 * rank)
        pads = [(flat[i], flat[i + rank]) for i in range(rank)]
    y = _TRANSPOSED[rank](x, w, None, strides, 0, 0, attributes["group"], dilations)
    crop = [(-before, extra[i] - after) for i, (before, after) in enumerate(pads)]
    y = pad_spatial(y, crop)
    return y if b is None else y + b.reshape([-1] + [1] * rank)


@op("DeformConv", since=19)
def deform_conv(
    attributes: Attributes, x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """A convolution whose taps are moved by `offset` and read by linear interpolation, zero outside the image."""
    rank, groups, shifts = w.ndim - 2, attributes["group"], attributes["offset_group"]
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    pads = attributes.get("pads") or [0] * (2 * rank)
    kernel, image, sizes = list(w.shape[2:]), list(offset.shape[2:]), list(x.shape[2:])
    n, channels = x.shape[0], x.shape[1]
    moved = offset.reshape(n, shifts, *kernel, rank, *image)
    at = []
    for axis in range(rank):
        taps = torch.arange(kernel[axis], device=x.device) * dilations[axis]
        places = torch.arange(image[axis], device=x.device) * strides[axis] - pads[axis]
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
    from onward.backends.torch.host import ints

    sizes, kernel = ints(image), ints(block)
    rank = len(sizes)
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    flat = attributes.get("pads") or [0] * (2 * rank)
    padded = [sizes[i] + flat[i] + flat[i + rank] for i in range(rank)]
    counts = [(padded[i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    index = torch.zeros([1] * (2 * rank), dtype=torch.int64)
    for i in range(rank):
        positions = (
            torch.arange(kernel[i]).unsqueeze(1) * dilations[i] + torch.arange(counts[i]).unsqueeze(0) * strides[i]
        )
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = kernel[i], counts[i]
        index = index * padded[i] + positions.reshape(shape)
    n = x.shape[0]
    total = 1
    for size in padded:
        total *= size
    channels = x.shape[1] // index[..., :].reshape(-1).shape[0] * 0 + x.shape[1]
    for k in kernel:
        channels //= k
    values = x.reshape(n, channels, x.shape[1] // channels * x.shape[2])
    out = torch.zeros(n, channels, total, dtype=x.dtype, device=x.device)
    out = out.scatter_add(2, index.reshape(1, 1, -1).expand(n, channels, -1).to(x.device), values)
    out = out.reshape(n, channels, *padded)
    return pad_spatial(out, [(-flat[i], -flat[i + rank]) for i in range(rank)])
