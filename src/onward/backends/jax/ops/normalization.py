"""Normalisations and losses."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph.shapes import along
from onward.backends.jax.ops.reduction import norm
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, jax_type


def _per_channel(value: Array, rank: int, axis: int = 1) -> Array:
    return value.reshape(along(axis, rank))


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return the mean, `x` without it, and the variance, each with the axes kept."""
    mean = jnp.mean(x, axes, keepdims=True)
    centred = x - mean
    return mean, centred, jnp.mean(centred * centred, axes, keepdims=True)


@op("BatchNormalization")
def batch_normalization(attributes: Attributes, x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Any:
    epsilon, rank = attributes["epsilon"], x.ndim
    channels = rank - 1 if attributes.get("channels_last") else 1

    def spread(value: Array) -> Array:
        return _per_channel(value, rank, channels)

    if not attributes.get("training_mode", 0):
        factor = scale / jnp.sqrt(var + epsilon)
        return ((x - spread(mean)) * spread(factor) + spread(bias)).astype(x.dtype)
    batch_mean, centred, batch_var = _moments(x, tuple(axis for axis in range(rank) if axis != channels))
    y = centred * (lax.rsqrt(batch_var + epsilon) * spread(scale)) + spread(bias)
    if attributes.outputs == 1:
        return y.astype(x.dtype)
    m = attributes["momentum"]
    following = [
        old * m + new.reshape(-1).astype(old.dtype) * (1 - m) for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return y.astype(x.dtype), *following


@op("InstanceNormalization")
def instance_normalization(attributes: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    _, centred, var = _moments(x, tuple(range(2, x.ndim)))
    return centred / jnp.sqrt(var + attributes["epsilon"]) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


def _at_least_32_bits(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


@op("LayerNormalization")
def layer_normalization(attributes: Attributes, x: Array, scale: Array, bias: Array | None = None) -> Any:
    mean, centred, var = _moments(_at_least_32_bits(x), tuple(range(attributes["axis"] % x.ndim, x.ndim)))
    inverse = lax.rsqrt(var + attributes["epsilon"])
    y = (centred * inverse).astype(x.dtype) * scale
    stash = jax_type(attributes.get("stash_type", 1))
    return (y if bias is None else y + bias), mean.astype(stash), inverse.astype(stash)


@op("RMSNormalization", since=23)
def rms_normalization(attributes: Attributes, x: Array, scale: Array) -> Array:
    wide = _at_least_32_bits(x)
    squares = jnp.mean(wide * wide, tuple(range(attributes["axis"] % x.ndim, x.ndim)), keepdims=True)
    return (wide * lax.rsqrt(squares + attributes["epsilon"])).astype(x.dtype) * scale


def _group_normal(attributes: Attributes, x: Array) -> Array:
    groups = attributes["num_groups"]
    _, centred, var = _moments(x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups), (2,))
    return centred / jnp.sqrt(var + attributes["epsilon"])


@op("GroupNormalization", since=21)
def group_normalization(attributes: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    return _group_normal(attributes, x).reshape(x.shape) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


@op("GroupNormalization", since=18)
def group_normalization_by_group(attributes: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    normal = _group_normal(attributes, x)
    return (normal * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)).reshape(x.shape)


@op("LpNormalization")
def lp_normalization(attributes: Attributes, x: Array) -> Array:
    length = norm(x, (attributes["axis"],), True, attributes["p"])
    return jnp.where(length == 0, 0, x / jnp.where(length == 0, 1, length))


@op("MeanVarianceNormalization")
def mean_variance_normalization(attributes: Attributes, x: Array) -> Array:
    axes = tuple(attributes["axes"])
    mean = jnp.mean(x, axes, keepdims=True)
    squares = jnp.mean(x * x, axes, keepdims=True)
    return (x - mean) / (jnp.sqrt(squares - mean * mean) + 1e-9)


@op("LRN")
def lrn(attributes: Attributes, x: Array) -> Array:
    size = attributes["size"]
    before = (size - 1) // 2
    ones = [1] * (x.ndim - 2)
    total = lax.reduce_window(
        x * x, np.zeros((), x.dtype), lax.add, (1, size, *ones), [1] * x.ndim,
        [(0, 0), (before, size - 1 - before), *[(0, 0)] * len(ones)],
    )  # fmt: skip
    return x / (attributes["bias"] + attributes["alpha"] / size * total) ** attributes["beta"]


def _nll(attributes: Attributes, log_prob: Array, target: Array, weight: Array | None) -> Array:
    reduction, ignored = attributes.get("reduction", "mean"), attributes.get("ignore_index")
    keep = jnp.ones(target.shape, bool) if ignored is None else target != ignored
    safe = jnp.where(keep, target, 0)
    picked = -jnp.take_along_axis(log_prob, safe[:, None], 1, mode="fill")[:, 0]
    weights = keep.astype(log_prob.dtype) if weight is None else weight[safe] * keep
    loss = picked * weights
    if reduction == "none":
        return loss
    return jnp.sum(loss) if reduction == "sum" else jnp.sum(loss) / jnp.sum(weights)


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood(attributes: Attributes, x: Array, target: Array, weight: Array | None = None) -> Array:
    return _nll(attributes, x, target, weight)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(attributes: Attributes, scores: Array, labels: Array, weights: Array | None = None) -> Any:
    log_prob = jax.nn.log_softmax(scores, 1)
    return _nll(attributes, log_prob, labels, weights), log_prob
