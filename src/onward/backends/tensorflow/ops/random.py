"""Random draws of an inference graph, from TensorFlow's generator; in training they are arithmetic over a random key.

A seed gives the same numbers in every run. Without one, every run differs, as `tf.random.set_seed` says.
"""

from __future__ import annotations

import struct
from typing import Any

import tensorflow as tf

from onward.backends.tensorflow.framework import shape_of, sized
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import tf_type


def _seed(attributes: Attributes) -> list[int] | None:
    given = attributes.get("seed")
    return None if given is None else [0, struct.unpack("<i", struct.pack("<f", given))[0]]


def _uniform(attributes: Attributes, shape: Any, dtype: tf.DType) -> tf.Tensor:
    seed = _seed(attributes)
    if seed is None:
        return tf.random.uniform(shape, dtype=dtype)
    return tf.random.stateless_uniform(shape, seed, dtype=dtype)


def _normal(attributes: Attributes, shape: Any, dtype: tf.DType) -> tf.Tensor:
    seed = _seed(attributes)
    if seed is None:
        return tf.random.normal(shape, dtype=dtype)
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def _target(attributes: Attributes, like: Any) -> tuple[Any, tf.DType]:
    given = attributes.get("dtype")
    if like is None:
        return attributes["shape"], tf.float32 if given is None else tf_type(given)
    return sized(shape_of(like)), like.dtype if given is None else tf_type(given)


@op("RandomNormal", "RandomNormalLike")
def random_normal(attributes: Attributes, like: Any = None) -> tf.Tensor:
    return _normal(attributes, *_target(attributes, like)) * attributes["scale"] + attributes["mean"]


@op("RandomUniform", "RandomUniformLike")
def random_uniform(attributes: Attributes, like: Any = None) -> tf.Tensor:
    low, high = attributes["low"], attributes["high"]
    return _uniform(attributes, *_target(attributes, like)) * (high - low) + low


@op("Bernoulli", since=15)
def bernoulli(attributes: Attributes, probability: tf.Tensor) -> tf.Tensor:
    given = attributes.get("dtype")
    drawn = _uniform(attributes, sized(shape_of(probability)), probability.dtype) < probability
    return tf.cast(drawn, probability.dtype if given is None else tf_type(given))


@op("Multinomial", since=7)
def multinomial(attributes: Attributes, logits: tf.Tensor) -> tf.Tensor:
    seed, count = _seed(attributes), attributes["sample_size"]
    if seed is None:
        drawn = tf.random.categorical(logits, count)
    else:
        drawn = tf.random.stateless_categorical(logits, count, seed)
    return tf.cast(drawn, tf_type(attributes["dtype"]))
