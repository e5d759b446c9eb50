"""Shapes: reshape, slice, pad, join, repeat, and the values made from shapes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.graph import shapes
from onward.backends.graph.common import register_shapes
from onward.backends.graph.host import Host
from onward.backends.graph.shapes import along, mirrored, pad_amounts, reshaped, slices, split_sizes
from onward.backends.torch.framework import TORCH, host_type, ints, number
from onward.backends.torch.registry import Attributes, op

register_shapes(TORCH)


@op("ConstantOfShape")
def constant_of_shape(attributes: Attributes, sizes: Any) -> Tensor:
    value = attributes.get("value")
    fill = torch.zeros(()) if value is None else value.reshape(())
    return fill.expand(ints(sizes)).clone()


@op("Range")
def range_(attributes: Attributes, start: Any, limit: Any, delta: Any) -> Tensor:
    dtype = host_type(start) if isinstance(start, Host) else start.dtype
    first, last, step = number(start), number(limit), number(delta)
    if (last - first) * step < 0:  # PyTorch refuses a range that points away from its end; it is empty
        return torch.empty(0, dtype=dtype)
    return torch.arange(first, last, step, dtype=dtype)


@op("EyeLike")
def eye_like(attributes: Attributes, x: Tensor) -> Tensor:
    from onward.backends.torch.tensors import torch_type

    dtype = torch_type(attributes["dtype"]) if "dtype" in attributes else x.dtype
    rows, columns = x.shape
    k = attributes.get("k", 0)
    row, column = torch.arange(rows).unsqueeze(1), torch.arange(columns).unsqueeze(0)
    return (column - row == k).to(dtype)


@op("Reshape")
def reshape(attributes: Attributes, x: Tensor, sizes: Any) -> Tensor:
    return x.reshape(reshaped(attributes, x.shape, ints(sizes)))


@op("Flatten")
def flatten(attributes: Attributes, x: Tensor) -> Tensor:
    axis = attributes["axis"]
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Squeeze")
def squeeze(attributes: Attributes, x: Tensor, axes: Any = None) -> Tensor:
    given = attributes.get("axes") if axes is None else ints(axes)
    if given is None:
        return x.squeeze()
    for axis in sorted((a % x.ndim for a in given), reverse=True):
        x = x.squeeze(axis)
    return x


@op("Unsqueeze")
def unsqueeze(attributes: Attributes, x: Tensor, axes: Any = None) -> Tensor:
    given = attributes["axes"] if axes is None else ints(axes)
    rank = x.ndim + len(given)
    for axis in sorted(a % rank for a in given):
        x = x.unsqueeze(axis)
    return x


@op("Transpose")
def transpose(attributes: Attributes, x: Tensor) -> Tensor:
    order = attributes.get("perm") or list(reversed(range(x.ndim)))
    return x.permute(order)


@op("Expand")
def expand(attributes: Attributes, x: Tensor, sizes: Any) -> Tensor:
    wanted = ints(sizes)
    return x.expand(torch.broadcast_shapes(x.shape, tuple(wanted)))


@op("Tile")
def tile(attributes: Attributes, x: Tensor, repeats: Any) -> Tensor:
    return x.repeat(ints(repeats))


@op("Concat")
def concat(attributes: Attributes, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, attributes["axis"])


@op("Split")
def split(attributes: Attributes, x: Tensor, sizes: Any = None) -> tuple[Tensor, ...]:
    axis = attributes["axis"]
    return tuple(torch.split(x, split_sizes(attributes, x.shape[axis], None if sizes is None else ints(sizes)), axis))


@op("Slice")
def slice_(
    attributes: Attributes, x: Tensor, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Tensor:
    given = [None if v is None else ints(v) for v in (starts, ends, axes, steps)]
    for axis, start, end, step in slices(attributes, x.shape, *given):
        if step > 0:
            x = x[(*[slice(None)] * axis, slice(start, end, step))]
        else:
            low, high, stride = slice(start, end, step).indices(x.shape[axis])
            x = x.index_select(axis, torch.arange(low, high, stride, device=x.device))
    return x


@op("Pad")
def pad(attributes: Attributes, x: Tensor, pads: Any = None, value: Any = None, axes: Any = None) -> Tensor:
    before, after = pad_amounts(attributes, x.ndim, *(None if v is None else ints(v) for v in (pads, axes)))
    mode = attributes.get("mode", "constant")
    if mode == "constant":
        flat = [v for axis in reversed(range(x.ndim)) for v in (before[axis], after[axis])]
        if isinstance(value, Tensor):
            mask = F.pad(torch.ones_like(x), flat)
            return torch.where(mask.bool(), F.pad(x, flat), value.reshape(()).to(x.dtype))
        return F.pad(x, flat, value=0 if value is None else number(value))
    for axis in range(x.ndim):
        # Negative pads crop first: what is repeated comes from the part that remains.
        start, end = max(-before[axis], 0), x.shape[axis] - max(-after[axis], 0)
        x = x.narrow(axis, start, end - start)
        left, right = max(before[axis], 0), max(after[axis], 0)
        if left or right:
            places = torch.arange(-left, x.shape[axis] + right, device=x.device)
            x = x.index_select(axis, mirrored(places, x.shape[axis], mode))
    return x


@op("DepthToSpace")
def depth_to_space(attributes: Attributes, x: Tensor) -> Tensor:
    return _moved(x, shapes.depth_to_space(attributes, x.shape))


@op("SpaceToDepth")
def space_to_depth(attributes: Attributes, x: Tensor) -> Tensor:
    return _moved(x, shapes.space_to_depth(attributes, x.shape))


def _moved(x: Tensor, blocks: shapes.Blocks) -> Tensor:
    return x.reshape(blocks.split).permute(blocks.order).reshape(blocks.joined)


@op("Trilu")
def trilu(attributes: Attributes, x: Tensor, k: Any = None) -> Tensor:
    diagonal = 0 if k is None else int(number(k))
    return torch.triu(x, diagonal) if attributes["upper"] else torch.tril(x, diagonal)


@op("OneHot")
def one_hot(attributes: Attributes, indices: Tensor, depth: Any, values: Tensor) -> Tensor:
    count = int(number(depth))
    axis = attributes["axis"]
    place = indices.to(torch.int64)
    where = torch.where(place < 0, place + count, place).unsqueeze(axis)  # outside of ±depth: no match
    classes = torch.arange(count, device=indices.device).reshape(along(axis, indices.ndim + 1))
    return torch.where(where == classes, values[1], values[0])
