"""Reductions, arg-reductions and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onward.backends.graph.shapes import reduced_axes
from onward.backends.torch.framework import ints, number
from onward.backends.torch.registry import Attributes, op


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[..., Tensor]:
    def run(attributes: Attributes, data: Tensor, axes: Any = None) -> Tensor:
        over = reduced_axes(attributes, None if axes is None else ints(axes), data.ndim)
        if not over:
            return function(data.unsqueeze(0), [0], False).to(data.dtype)
        return function(data, over, bool(attributes.get("keepdims", 1))).to(data.dtype)

    return run


def _prod(data: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in reversed(axes):
        data = data.prod(axis, keepdim=keep).to(data.dtype)
    return data


def _mean(data: Tensor, axes: list[int], keep: bool) -> Tensor:
    wide = data if data.is_floating_point() else data.double()
    return wide.mean(axes, keepdim=keep).to(data.dtype)


def _l2(data: Tensor, axes: list[int], keep: bool) -> Tensor:
    if data.is_floating_point() and axes:
        return torch.linalg.vector_norm(data, 2, axes, keepdim=keep)  # its gradient at zero is zero, not NaN
    wide = data if data.is_floating_point() else data.double()
    return (wide * wide).sum(axes, keepdim=keep).sqrt()


def _log_sum_exp(data: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(data, axes, keepdim=keep)


def _extreme(data: Tensor, axes: list[int], keep: bool, largest: bool) -> Tensor:
    if all(data.shape[a] for a in axes):
        return data.amax(axes, keepdim=keep) if largest else data.amin(axes, keepdim=keep)
    # The maximum (minimum) of an empty tensor is the lowest (highest) number.
    if data.dtype == torch.bool:
        identity: Any = not largest
    elif data.is_floating_point():
        identity = -math.inf if largest else math.inf
    else:
        limits = torch.iinfo(data.dtype)
        identity = limits.min if largest else limits.max
    shape = [1 if a in axes else n for a, n in enumerate(data.shape) if keep or a not in axes]
    return torch.full(shape, identity, dtype=data.dtype, device=data.device)


op("ReduceSum")(_reduction(lambda x, a, k: x.sum(a, keepdim=k).to(x.dtype)))
op("ReduceMean")(_reduction(_mean))
op("ReduceMax")(_reduction(lambda x, a, k: _extreme(x, a, k, largest=True)))
op("ReduceMin")(_reduction(lambda x, a, k: _extreme(x, a, k, largest=False)))
op("ReduceProd")(_reduction(_prod))
op("ReduceL1")(_reduction(lambda x, a, k: x.abs().sum(a, keepdim=k)))
op("ReduceL2")(_reduction(_l2))
op("ReduceLogSum")(_reduction(lambda x, a, k: x.sum(a, keepdim=k).log()))
op("ReduceLogSumExp")(_reduction(_log_sum_exp))
op("ReduceSumSquare")(_reduction(lambda x, a, k: (x * x).sum(a, keepdim=k)))


def _arg(data: Tensor, attributes: Attributes, largest: bool) -> Tensor:
    axis, keep = attributes["axis"], bool(attributes["keepdims"])
    if attributes.get("select_last_index", 0):
        flipped = data.flip(axis)
        found = flipped.argmax(axis, keepdim=keep) if largest else flipped.argmin(axis, keepdim=keep)
        return data.shape[axis] - 1 - found
    return data.argmax(axis, keepdim=keep) if largest else data.argmin(axis, keepdim=keep)


@op("ArgMax")
def arg_max(attributes: Attributes, data: Tensor) -> Tensor:
    return _arg(data, attributes, largest=True)


@op("ArgMin")
def arg_min(attributes: Attributes, data: Tensor) -> Tensor:
    return _arg(data, attributes, largest=False)


@op("CumSum")
def cum_sum(attributes: Attributes, x: Tensor, axis: Any) -> Tensor:
    dim = int(number(axis))
    if attributes["reverse"]:
        x = x.flip(dim)
    result = x.cumsum(dim).to(x.dtype)
    if attributes["exclusive"]:
        result = result - x
    return result.flip(dim) if attributes["reverse"] else result


@op("CumProd", since=26)
def cum_prod(attributes: Attributes, x: Tensor, axis: Any) -> Tensor:
    dim = int(number(axis))
    if attributes["reverse"]:
        x = x.flip(dim)
    if attributes["exclusive"]:
        x = torch.cat([torch.ones_like(x.narrow(dim, 0, 1)), x.narrow(dim, 0, x.shape[dim] - 1)], dim)
    result = x.cumprod(dim).to(x.dtype)
    return result.flip(dim) if attributes["reverse"] else result


@op("TopK")
def top_k(attributes: Attributes, x: Tensor, k: Any) -> tuple[Tensor, Tensor]:
    # A stable sort gives ONNX's order among equals: the lower index first.
    axis = attributes["axis"]
    values, indices = torch.sort(x, dim=axis, descending=bool(attributes["largest"]), stable=True)
    count = int(number(k))
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)
