"""Random draws of an inference graph, from JAX's generator; in training they are arithmetic over a random key.

A seed gives the same numbers in every run. Without one, every run differs, in a compiled function too.
"""

from __future__ import annotations

import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array, jax_type


def _key(attributes: Attributes) -> Array:
    seed = attributes.get("seed")
    if seed is None:
        fresh = jax.ShapeDtypeStruct((), np.uint32)
        return jax.random.key(io_callback(lambda: np.uint32(secrets.randbits(32)), fresh))
    return jax.random.key(int(seed))


def _kind(attributes: Attributes, like: Any) -> tuple[tuple[int, ...], np.dtype]:
    given = attributes.get("dtype")
    if like is None:
        return tuple(attributes["shape"]), np.dtype(np.float32) if given is None else jax_type(given)
    return like.shape, like.dtype if given is None else jax_type(given)


@op("RandomNormal", "RandomNormalLike")
def random_normal(attributes: Attributes, like: Any = None) -> Array:
    drawn = jax.random.normal(_key(attributes), *_kind(attributes, like))
    return drawn * attributes["scale"] + attributes["mean"]


@op("RandomUniform", "RandomUniformLike")
def random_uniform(attributes: Attributes, like: Any = None) -> Array:
    shape, dtype = _kind(attributes, like)
    return jax.random.uniform(_key(attributes), shape, dtype, attributes["low"], attributes["high"])


@op("Bernoulli", since=15)
def bernoulli(attributes: Attributes, probability: Array) -> Array:
    drawn = jax.random.bernoulli(_key(attributes), probability)
    given = attributes.get("dtype")
    return drawn.astype(probability.dtype if given is None else jax_type(given))


@op("Multinomial", since=7)
def multinomial(attributes: Attributes, logits: Array) -> Array:
    count = attributes["sample_size"]
    drawn = jax.random.categorical(_key(attributes), logits[:, None, :], shape=(logits.shape[0], count))
    return jnp.asarray(drawn, jax_type(attributes["dtype"]))
