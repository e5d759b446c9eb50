"""Gather, scatter and selection of elements.

An index that is out of range cannot stop a traced function: it reads NaN (of integers, the lowest number) and writes
nothing.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from onward.backends.graph import on_numpy
from onward.backends.graph.shapes import along
from onward.backends.jax.framework import concrete
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, to_tensor


def _from_the_front(indices: Array, size: int) -> Array:
    return jnp.where(indices < 0, indices + size, indices)


@op("Gather")
def gather(attributes: Attributes, data: Array, indices: Array) -> Array:
    axis = attributes["axis"] % data.ndim
    return jnp.take(data, _from_the_front(indices, data.shape[axis]), axis, mode="fill")


@op("GatherElements")
def gather_elements(attributes: Attributes, data: Array, indices: Array) -> Array:
    axis = attributes["axis"] % data.ndim
    return data.at[_along(_from_the_front(indices, data.shape[axis]), axis)].get(mode="fill")


def _along(indices: Array, axis: int) -> tuple[Array, ...]:
    """Return an index array for each axis: `indices` along `axis`, and each element's own place along the others."""
    places = [jnp.arange(n).reshape(along(i, indices.ndim)) for i, n in enumerate(indices.shape)]
    return tuple(indices if i == axis else p for i, p in enumerate(places))


def _flat_index(indices: Array, sizes: list[int]) -> Array:
    """Return positions in a tensor of `sizes`, flattened, for index tuples in the last dimension."""
    flat = jnp.zeros(indices.shape[:-1], jnp.int64)
    for i, size in enumerate(sizes):
        flat = flat * size + _from_the_front(indices[..., i].astype(jnp.int64), size)
    return flat


@op("GatherND")
def gather_nd(attributes: Attributes, data: Array, indices: Array) -> Array:
    batch, depth = attributes.get("batch_dims", 0), indices.shape[-1]
    lead = math.prod(data.shape[:batch])
    sizes, rest = list(data.shape[batch : batch + depth]), list(data.shape[batch + depth :])
    table = data.reshape(lead, math.prod(sizes), *rest)
    flat = _flat_index(indices.reshape(lead, math.prod(indices.shape[batch:-1]), depth), sizes)
    picked = table.at[jnp.arange(lead)[:, None], flat].get(mode="fill")
    return picked.reshape([*indices.shape[:-1], *rest])


_METHODS = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _write(data: Array, index: Any, updates: Array, attributes: Attributes) -> Array:
    method = _METHODS[attributes.get("reduction", "none")]
    result: Array = getattr(data.at[index], method)(updates, mode="drop")
    return result


@op("ScatterElements", "Scatter")
def scatter_elements(attributes: Attributes, data: Array, indices: Array, updates: Array) -> Array:
    axis = attributes["axis"] % data.ndim
    return _write(data, _along(_from_the_front(indices, data.shape[axis]), axis), updates, attributes)


@op("ScatterND")
def scatter_nd(attributes: Attributes, data: Array, indices: Array, updates: Array) -> Array:
    depth = indices.shape[-1]
    index = tuple(_from_the_front(indices[..., i], data.shape[i]) for i in range(depth))
    return _write(data, index if depth else ..., updates, attributes)


@op("Compress")
def compress(attributes: Attributes, data: Array, condition: Array) -> Array:
    chosen = concrete(condition).nonzero()[0]
    if "axis" not in attributes:
        return jnp.take(data.reshape(-1), chosen)
    return jnp.take(data, chosen, attributes["axis"])


@op("NonZero")
def non_zero(attributes: Attributes, x: Array) -> Array:
    known = concrete(x)
    if not known.ndim:
        return jnp.zeros((0, int(known != 0)), jnp.int64)
    return jnp.stack([jnp.asarray(i) for i in known.nonzero()])


@op("ReverseSequence")
def reverse_sequence(attributes: Attributes, x: Array, lengths: Array) -> Array:
    time, batch = attributes["time_axis"], attributes["batch_axis"]
    steps = jnp.arange(x.shape[time]).reshape(along(time, x.ndim))
    size = lengths.astype(jnp.int64).reshape(along(batch, x.ndim))
    return jnp.take_along_axis(x, jnp.where(steps < size, size - 1 - steps, steps), time)


@op("Unique")
def unique(attributes: Attributes, x: Array) -> tuple[Array, ...]:
    return tuple(to_tensor(v) for v in on_numpy.unique(attributes, concrete(x)))


@op("TensorScatter", since=24)
def tensor_scatter(attributes: Attributes, cache: Array, update: Array, start: Any = None) -> Array:
    axis, rank = attributes["axis"] % cache.ndim, cache.ndim
    first = jnp.zeros(cache.shape[0], jnp.int64) if start is None else start
    place = first.reshape(along(0, rank)) + jnp.arange(update.shape[axis]).reshape(along(axis, rank))
    if attributes.get("mode", "linear") == "circular":
        place = place % cache.shape[axis]
    return cache.at[_along(jnp.broadcast_to(place, update.shape), axis)].set(update, mode="drop")
