"""Gather, scatter and selection of elements."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onward.backends.graph import on_numpy
from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import to_numpy, to_tensor


@op("Gather")
def gather(attributes: Attributes, data: Tensor, indices: Tensor) -> Tensor:
    axis = attributes["axis"] % data.ndim
    flat = torch.where(indices < 0, indices + data.shape[axis], indices).to(torch.int64).reshape(-1)
    picked = data.index_select(axis, flat)
    return picked.reshape([*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]])


@op("GatherElements")
def gather_elements(attributes: Attributes, data: Tensor, indices: Tensor) -> Tensor:
    axis = attributes["axis"] % data.ndim
    wrapped = torch.where(indices < 0, indices + data.shape[axis], indices).to(torch.int64)
    return torch.gather(data, axis, wrapped)


def _flat_index(indices: Tensor, sizes: list[int]) -> Tensor:
    """Return positions in a tensor of `sizes`, flattened, for index tuples in the last dimension."""
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for i, size in enumerate(sizes):
        part = indices[..., i].to(torch.int64)
        flat = flat * size + torch.where(part < 0, part + size, part)
    return flat


@op("GatherND")
def gather_nd(attributes: Attributes, data: Tensor, indices: Tensor) -> Tensor:
    batch = attributes.get("batch_dims", 0)
    depth = indices.shape[-1]
    lead = math.prod(data.shape[:batch])
    sizes = list(data.shape[batch : batch + depth])
    rest = list(data.shape[batch + depth :])
    table = data.reshape(lead, math.prod(sizes), *rest)
    flat = _flat_index(indices.reshape(lead, -1, depth), sizes)
    rows = torch.arange(lead, device=data.device).unsqueeze(1)
    picked = table[rows, flat]
    return picked.reshape([*indices.shape[:-1], *rest])


def _of_one_type(data: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the wider type: the zeros of a graph stay float32 in a `.double()` module."""
    if data.dtype == updates.dtype:
        return data, updates
    wide = torch.promote_types(data.dtype, updates.dtype)
    return data.to(wide), updates.to(wide)


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@op("ScatterElements", "Scatter")
def scatter_elements(attributes: Attributes, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    data, updates = _of_one_type(data, updates)
    axis = attributes["axis"] % data.ndim
    wrapped = torch.where(indices < 0, indices + data.shape[axis], indices).to(torch.int64)
    reduction = attributes.get("reduction", "none")
    if reduction == "none":
        return data.scatter(axis, wrapped, updates)
    if reduction == "add":
        return data.scatter_add(axis, wrapped, updates)
    return data.scatter_reduce(axis, wrapped, updates, _REDUCE[reduction])


@op("ScatterND")
def scatter_nd(attributes: Attributes, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    data, updates = _of_one_type(data, updates)
    depth = indices.shape[-1]
    sizes, rest = list(data.shape[:depth]), list(data.shape[depth:])
    flat = _flat_index(indices, sizes).reshape(-1)
    width = math.prod(rest)
    table = data.reshape(math.prod(sizes), width)
    values = updates.reshape(flat.shape[0], width)
    index = flat.unsqueeze(1).expand(flat.shape[0], width)
    reduction = attributes.get("reduction", "none")
    if reduction == "none":
        result = table.scatter(0, index, values)
    elif reduction == "add":
        result = table.scatter_add(0, index, values)
    else:
        result = table.scatter_reduce(0, index, values, _REDUCE[reduction])
    return result.reshape(data.shape)


@op("Compress")
def compress(attributes: Attributes, data: Tensor, condition: Tensor) -> Tensor:
    chosen = torch.nonzero(condition).reshape(-1)
    if "axis" not in attributes:
        return data.reshape(-1).index_select(0, chosen)
    return data.index_select(attributes["axis"] % data.ndim, chosen)


@op("NonZero")
def non_zero(attributes: Attributes, x: Tensor) -> Tensor:
    if x.ndim == 0:
        return torch.nonzero(x.reshape(1)).t()[:0].reshape(0, int(x != 0))
    return torch.nonzero(x).t()


@op("ReverseSequence")
def reverse_sequence(attributes: Attributes, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = attributes["time_axis"], attributes["batch_axis"]
    steps = torch.arange(x.shape[time], device=x.device).unsqueeze(1)
    size = lengths.to(torch.int64).unsqueeze(0)
    index = torch.where(steps < size, size - 1 - steps, steps)  # time × batch
    if time > batch:
        index = index.t()
    index = index.reshape([*index.shape, *[1] * (x.ndim - 2)]).expand(x.shape)
    return torch.gather(x, time, index)


@op("Unique")
def unique(attributes: Attributes, x: Tensor) -> Any:
    return tuple(to_tensor(v) for v in on_numpy.unique(attributes, to_numpy(x)))


@op("TensorScatter", since=24)
def tensor_scatter(attributes: Attributes, cache: Tensor, update: Tensor, start: Any = None) -> Tensor:
    axis = attributes["axis"] % cache.ndim
    steps = torch.arange(update.shape[axis], device=cache.device)
    first = torch.zeros(cache.shape[0], dtype=torch.int64, device=cache.device) if start is None else start
    place = first.unsqueeze(1) + steps  # [batch, steps]
    if attributes.get("mode", "linear") == "circular":
        place = place % cache.shape[axis]
    shape = [1] * cache.ndim
    shape[0], shape[axis] = place.shape
    return cache.scatter(axis, place.reshape(shape).expand(update.shape), update)
