"""Normalisations and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onward.backends.graph.shapes import along
from onward.backends.tensorflow.framework import shape_of, sized
from onward.backends.tensorflow.ops.reduction import norm
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import tf_type


def _moments(x: tf.Tensor, axes: list[int]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the mean, `x` without it, and the variance, each with the axes kept."""
    mean = tf.reduce_mean(x, axes, True)
    centred = x - mean
    return mean, centred, tf.reduce_mean(centred * centred, axes, True)


@op("BatchNormalization")
def batch_normalization(
    attributes: Attributes, x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor, mean: tf.Tensor, var: tf.Tensor
) -> Any:
    epsilon, rank = attributes["epsilon"], x.shape.rank
    axis = attributes.get("channel_axis", 1)  # the layout rules say where the channels are

    def channel(value: tf.Tensor) -> tf.Tensor:
        return tf.reshape(value, along(axis, rank))

    if not attributes.get("training_mode", 0):
        factor = scale / tf.cast(tf.sqrt(var + epsilon), scale.dtype)
        shift = bias - tf.cast(mean, scale.dtype) * factor
        return tf.cast(tf.cast(x, scale.dtype) * channel(factor) + channel(shift), x.dtype)
    if x.dtype == scale.dtype == mean.dtype == tf.float32 and rank == 4 and axis == 3:
        y, batch_mean, batch_var = _fused(x, scale, bias, epsilon)
    else:
        batch_mean, centred, batch_var = _moments(x, [a for a in range(rank) if a != axis])
        factor = tf.math.rsqrt(batch_var + epsilon) * channel(tf.cast(scale, x.dtype))
        y = centred * factor + channel(tf.cast(bias, x.dtype))
    if attributes.outputs == 1:
        return y
    m = attributes["momentum"]
    following = [
        old * m + tf.cast(tf.reshape(new, [-1]), old.dtype) * (1 - m)
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return y, *following


def _fused(x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return TensorFlow's own normalisation of a batch, its mean and variance.

    Its variance is unbiased and ONNX's is not. TensorFlow would ignore gradients with respect to both in silence, so
    they are refused.
    """
    empty = tf.zeros([0], tf.float32)
    y, mean, var, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=bias, mean=empty, variance=empty, epsilon=epsilon, is_training=True
    )
    count = tf.cast(math.prod(shape_of(x)[:-1]), tf.float32)
    var = var * tf.maximum(count - 1, 1) / count
    message = "gradients with respect to the running statistics of a batch normalisation"
    refused = [tf.raw_ops.PreventGradient(input=v, message=message) for v in (mean, var)]
    return y, refused[0], refused[1]


@op("InstanceNormalization")
def instance_normalization(attributes: Attributes, x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    rank, axis = x.shape.rank, attributes.get("channel_axis", 1)
    _, centred, var = _moments(x, [a for a in range(1, rank) if a != axis])
    shape = along(axis, rank)
    return centred / tf.sqrt(var + attributes["epsilon"]) * tf.reshape(scale, shape) + tf.reshape(bias, shape)


def _at_least_32_bits(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x


@op("LayerNormalization")
def layer_normalization(attributes: Attributes, x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor | None = None) -> Any:
    axes = list(range(attributes["axis"] % x.shape.rank, x.shape.rank))
    mean, centred, var = _moments(_at_least_32_bits(x), axes)
    inverse = tf.math.rsqrt(var + attributes["epsilon"])
    y = tf.cast(centred * inverse, x.dtype) * scale
    stash = tf_type(attributes.get("stash_type", 1))
    return (y if bias is None else y + bias), tf.cast(mean, stash), tf.cast(inverse, stash)


@op("RMSNormalization", since=23)
def rms_normalization(attributes: Attributes, x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    wide = _at_least_32_bits(x)
    axes = list(range(attributes["axis"] % x.shape.rank, x.shape.rank))
    squares = tf.reduce_mean(wide * wide, axes, True)
    return tf.cast(wide * tf.math.rsqrt(squares + attributes["epsilon"]), x.dtype) * scale


def _group_normal(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    groups, (n, *rest) = attributes["num_groups"], shape_of(x)
    _, centred, var = _moments(tf.reshape(x, sized([n, groups, math.prod(rest) // groups])), [2])
    return centred / tf.sqrt(var + attributes["epsilon"])


@op("GroupNormalization", since=21)
def group_normalization(attributes: Attributes, x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    shape = along(1, x.shape.rank)
    normal = tf.reshape(_group_normal(attributes, x), sized(shape_of(x)))
    return normal * tf.reshape(scale, shape) + tf.reshape(bias, shape)


@op("GroupNormalization", since=18)
def group_normalization_by_group(attributes: Attributes, x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    normal = _group_normal(attributes, x)
    return tf.reshape(normal * tf.reshape(scale, [1, -1, 1]) + tf.reshape(bias, [1, -1, 1]), sized(shape_of(x)))


@op("LpNormalization")
def lp_normalization(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    length = norm(x, [attributes["axis"]], True, attributes["p"])
    nothing = length == 0
    return tf.where(nothing, tf.zeros_like(x), x / tf.where(nothing, tf.ones_like(length), length))


@op("MeanVarianceNormalization")
def mean_variance_normalization(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    axes = list(attributes["axes"])
    mean = tf.reduce_mean(x, axes, True)
    squares = tf.reduce_mean(x * x, axes, True)
    return (x - mean) / (tf.sqrt(squares - mean * mean) + 1e-9)


@op("LRN")
def lrn(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    size, channels = attributes["size"], shape_of(x)[1]
    before = (size - 1) // 2
    sides = [[0, 0], [before, size - 1 - before], *[[0, 0]] * (x.shape.rank - 2)]
    padded = tf.pad(x * x, sides)
    total = tf.add_n([padded[:, i : i + channels] for i in range(size)])
    return x / (attributes["bias"] + attributes["alpha"] / size * total) ** attributes["beta"]


def _reduced(
    attributes: Attributes,
    target: tf.Tensor,
    weight: tf.Tensor | None,
    dtype: tf.DType,
    losses: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Return the loss that `losses(classes)` gives for each element, weighted and reduced."""
    reduction, ignored = attributes.get("reduction", "mean"), attributes.get("ignore_index")
    keep = tf.ones_like(target, tf.bool) if ignored is None else target != ignored
    safe = tf.where(keep, target, tf.zeros_like(target))
    weights = tf.cast(keep, dtype)
    if weight is not None:
        weights = tf.gather(weight, safe) * weights
    loss = losses(safe) * weights
    if reduction == "none":
        return loss
    return tf.reduce_sum(loss) if reduction == "sum" else tf.reduce_sum(loss) / tf.reduce_sum(weights)


def _classes_last(x: tf.Tensor) -> tf.Tensor:
    rank = x.shape.rank
    return x if rank == 2 else tf.transpose(x, [0, *range(2, rank), 1])


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    attributes: Attributes, x: tf.Tensor, target: tf.Tensor, weight: tf.Tensor | None = None
) -> tf.Tensor:
    last = _classes_last(x)
    batch = x.shape.rank - 1

    def losses(classes: tf.Tensor) -> tf.Tensor:
        return -tf.gather(last, classes, axis=batch, batch_dims=batch)

    return _reduced(attributes, target, weight, x.dtype, losses)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    attributes: Attributes, scores: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None = None
) -> Any:
    def losses(classes: tf.Tensor) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(classes, _classes_last(scores))

    return _reduced(attributes, labels, weights, scores.dtype, losses), tf.nn.log_softmax(scores, 1)
