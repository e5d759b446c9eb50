"""Shapes: reshape, slice, pad, join, repeat, and the values made from shapes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.torch.host import Host, ints, number
from onward.backends.torch.registry import Attributes, op


@op("Shape")
def shape(attributes: Attributes, x: Any) -> Host:
    sizes = list(x.shape)
    start, end = attributes.get("start", 0), attributes.get("end")
    sizes = sizes[start : len(sizes) if end is None else end]
    return Host(sizes, (len(sizes),))


@op("Size")
def size(attributes: Attributes, x: Any) -> Host:
    return Host([math.prod(x.shape)], ())


@op("Constant")
def constant(attributes: Attributes) -> Any:
    """Register Constant as supported; the interpreter itself evaluates constants."""
    raise AssertionError("the interpreter evaluates constants once")


@op("ConstantOfShape")
def constant_of_shape(attributes: Attributes, sizes: Any) -> Tensor:
    value = attributes.get("value")
    fill = torch.zeros(()) if value is None else value.reshape(())
    return fill.expand(ints(sizes)).clone()


@op("Range")
def range_(attributes: Attributes, start: Any, limit: Any, delta: Any) -> Tensor:
    dtype = start.dtype
    return torch.arange(number(start), number(limit), number(delta), dtype=dtype)


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
    wanted = ints(sizes)
    if not attributes.get("allowzero", 0):
        wanted = [x.shape[i] if v == 0 and isinstance(v, int) else v for i, v in enumerate(wanted)]
    return x.reshape(wanted)


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
    given = attributes.get("split") if sizes is None else ints(sizes)
    if given is None:
        count = attributes.get("num_outputs") or attributes.outputs
        each = -(-x.shape[axis] // count)
        given = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return tuple(torch.split(x, given, axis))


@op("Slice")
def slice_(
    attributes: Attributes, x: Tensor, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Tensor:
    first = attributes["starts"] if starts is None else ints(starts)
    last = attributes["ends"] if ends is None else ints(ends)
    over = attributes.get("axes") if axes is None else ints(axes)
    over = list(range(len(first))) if over is None else over
    by = [1] * len(first) if steps is None else ints(steps)
    for start, end, axis, step in zip(first, last, over, by, strict=True):
        size = x.shape[axis]
        if step > 0:
            index = [slice(None)] * (axis % x.ndim) + [slice(start, end, step)]
            x = x[tuple(index)]
        else:
            low, high, stride = slice(start, end if end >= -size else None, step).indices(size)
            x = x.index_select(axis % x.ndim, torch.arange(low, high, stride, device=x.device))
    return x


@op("Pad")
def pad(attributes: Attributes, x: Tensor, pads: Any = None, value: Any = None, axes: Any = None) -> Tensor:
    given = attributes.get("pads") if pads is None else ints(pads)
    over = list(range(x.ndim)) if axes is None else [a % x.ndim for a in ints(axes)]
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(over):
        before[axis], after[axis] = given[i], given[i + len(over)]
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
            x = x.index_select(axis, _padded_indices(x.shape[axis], left, right, mode).to(x.device))
    return x


def _padded_indices(size: int, before: int, after: int, mode: str) -> Tensor:
    index = torch.arange(-before, size + after)
    if mode == "edge":
        return index.clamp(0, size - 1)
    if mode == "wrap":
        return index % size
    period = max(2 * (size - 1), 1)
    index = index % period
    return torch.where(index < size, index, period - index)


@op("DepthToSpace")
def depth_to_space(attributes: Attributes, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = attributes["blocksize"]
    if attributes.get("mode", "DCR") == "DCR":
        return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)
    return x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


@op("SpaceToDepth")
def space_to_depth(attributes: Attributes, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = attributes["blocksize"]
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 1, 3, 5, 2, 4) if attributes.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return blocks.permute(order).reshape(n, c * b * b, h // b, w // b)


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
    rank = indices.ndim + 1
    classes = torch.arange(count, device=indices.device).reshape(
        [count if i == axis % rank else 1 for i in range(rank)]
    )
    return torch.where(where == classes, values[1], values[0])
