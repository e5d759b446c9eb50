"""Normalisations and losses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.torch.registry import Attributes, op
from onward.backends.torch.tensors import torch_type


def _per_channel(value: Tensor, rank: int) -> Tensor:
    return value.reshape([1, -1] + [1] * (rank - 2))


def _batch_norm(
    x: Tensor, mean: Tensor | None, var: Tensor | None, scale: Tensor, bias: Tensor, training: bool, epsilon: float
) -> Tensor:
    """Return F.batch_norm, with right gradients for one example too.

    On a CPU, PyTorch reads a gradient whose channels come last in memory as if they came first, if the batch is one
    example with two or three spatial axes. A Transpose behind the layer gives such a gradient. One axis is safe.
    """
    if x.ndim > 3 and x.shape[0] == 1:
        return F.batch_norm(x.flatten(2), mean, var, scale, bias, training, 0.0, epsilon).reshape(x.shape)
    return F.batch_norm(x, mean, var, scale, bias, training, 0.0, epsilon)


@op("BatchNormalization")
def batch_normalization(
    attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Any:
    epsilon = attributes["epsilon"]
    if not attributes.get("training_mode", 0):
        if mean.requires_grad or var.requires_grad:  # F.batch_norm has no gradient of the statistics
            mean, var, scale, bias = (_per_channel(v, x.ndim) for v in (mean, var, scale, bias))
            return ((x - mean) / torch.sqrt(var + epsilon) * scale + bias).to(x.dtype)
        if x.dtype == scale.dtype == mean.dtype:
            return _batch_norm(x, mean, var, scale, bias, False, epsilon)
        x_wide, scale, bias = (v.to(mean.dtype) for v in (x, scale, bias))
        return _batch_norm(x_wide, mean, var, scale, bias, False, epsilon).to(x.dtype)
    # PyTorch's running variance is unbiased and ONNX's is not, so only y comes from F.batch_norm.
    axes = [0, *range(2, x.ndim)]
    y = _batch_norm(x, None, None, scale.to(x.dtype), bias.to(x.dtype), True, epsilon)
    if attributes.outputs == 1:
        return y
    momentum = attributes["momentum"]
    batch_mean = x.mean(axes).to(mean.dtype)
    batch_var = x.var(axes, unbiased=False).to(var.dtype)
    return y, mean * momentum + batch_mean * (1 - momentum), var * momentum + batch_var * (1 - momentum)


@op("InstanceNormalization")
def instance_normalization(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    axes = list(range(2, x.ndim))
    centred = x - x.mean(axes, keepdim=True)
    var = (centred * centred).mean(axes, keepdim=True)  # `x.var` warns about an empty batch
    normal = centred / torch.sqrt(var + attributes["epsilon"])
    return normal * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


@op("LayerNormalization")
def layer_normalization(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis = attributes["axis"] % x.ndim
    axes = list(range(axis, x.ndim))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if attributes.outputs == 1 and tuple(scale.shape) == tuple(x.shape[axis:]) and wide is x:
        return F.layer_norm(x, x.shape[axis:], scale, bias, attributes["epsilon"])
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    inverse = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + attributes["epsilon"])
    y = (centred * inverse).to(x.dtype) * scale
    stash = torch_type(attributes.get("stash_type", 1))
    return (y if bias is None else y + bias), mean.to(stash), inverse.to(stash)


@op("RMSNormalization", since=23)
def rms_normalization(attributes: Attributes, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(attributes["axis"] % x.ndim, x.ndim))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    normal = wide * torch.rsqrt((wide * wide).mean(axes, keepdim=True) + attributes["epsilon"])
    return normal.to(x.dtype) * scale


def _group_normal(attributes: Attributes, x: Tensor) -> Tensor:
    groups = attributes["num_groups"]
    grouped = x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    centred = grouped - grouped.mean(-1, keepdim=True)
    var = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(var + attributes["epsilon"])


@op("GroupNormalization", since=21)
def group_normalization(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return _group_normal(attributes, x).reshape(x.shape) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


@op("GroupNormalization", since=18)
def group_normalization_by_group(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    normal = _group_normal(attributes, x)
    return (normal * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)).reshape(x.shape)


@op("LpNormalization")
def lp_normalization(attributes: Attributes, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, attributes["p"], attributes["axis"], keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm))


@op("MeanVarianceNormalization")
def mean_variance_normalization(attributes: Attributes, x: Tensor) -> Tensor:
    axes = attributes["axes"]
    mean = x.mean(axes, keepdim=True)
    squares = (x * x).mean(axes, keepdim=True)
    return (x - mean) / (torch.sqrt(squares - mean * mean) + 1e-9)


@op("LRN")
def lrn(attributes: Attributes, x: Tensor) -> Tensor:
    size = attributes["size"]
    squares = F.pad((x * x).movedim(1, -1), [(size - 1) // 2, size - 1 - (size - 1) // 2])
    total = squares.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (attributes["bias"] + attributes["alpha"] / size * total) ** attributes["beta"]


def _nll(attributes: Attributes, log_prob: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    reduction = attributes.get("reduction", "mean")
    ignored = attributes.get("ignore_index")
    target = target.to(torch.int64)
    keep = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    safe = torch.where(keep, target, torch.zeros_like(target))
    picked = -torch.gather(log_prob, 1, safe.unsqueeze(1)).squeeze(1)
    weights = keep.to(log_prob.dtype) if weight is None else weight[safe] * keep
    loss = picked * weights
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / weights.sum()


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood(attributes: Attributes, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return _nll(attributes, x, target, weight)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(attributes: Attributes, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Any:
    log_prob = torch.log_softmax(scores, 1)
    return _nll(attributes, log_prob, labels, weights), log_prob
