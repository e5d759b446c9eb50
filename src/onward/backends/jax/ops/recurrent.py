"""LSTM, GRU and RNN, as `lax.scan` over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onward.backends.graph import recurrent
from onward.backends.graph.recurrent import Step
from onward.backends.jax.framework import JAX
from onward.backends.jax.registry import op
from onward.backends.jax.tensors import Array


class Recurrent(recurrent.Recurrent):
    """The three operators on JAX."""

    activations = {
        "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh, "relu": jax.nn.relu, "softsign": jax.nn.soft_sign,
        "softplus": jax.nn.softplus,
        "leakyrelu": lambda x, a: jnp.where(x > 0, x, a * x),
        "elu": lambda x, a: jnp.where(x > 0, x, a * jnp.expm1(jnp.where(x > 0, 0, x))),
        "thresholdedrelu": lambda x, a: jnp.where(x > a, x, 0),
        "hardsigmoid": lambda x, a, b: jnp.clip(a * x + b, 0, 1),
        "scaledtanh": lambda x, a, b: a * jnp.tanh(b * x),
        "affine": lambda x, a, b: a * x + b,
    }  # fmt: skip

    def clamp(self, x: Array, low: float, high: float) -> Array:
        return jnp.clip(x, low, high)

    def transpose(self, x: Array, order: tuple[int, ...]) -> Array:
        return x.transpose(order)

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        return jnp.where(condition, x, y)

    def zeros(self, sizes: Sequence[Any], like: Array) -> Array:
        return jnp.zeros(sizes, like.dtype)

    def loop(self, step: Step, X: Array, state: tuple[Array, ...], backwards: bool) -> tuple[Array, Sequence[Array]]:
        def one(before: tuple[Array, ...], at: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
            output, *new = step(*at, *before)
            return tuple(n.astype(s.dtype) for n, s in zip(new, before, strict=True)), output.astype(before[0].dtype)

        final, outputs = lax.scan(one, state, (jnp.arange(X.shape[0]), X), reverse=backwards)
        return outputs, final


op("RNN", "GRU", "LSTM")(Recurrent(JAX).run)
