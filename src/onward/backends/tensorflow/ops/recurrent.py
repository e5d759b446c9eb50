"""LSTM, GRU and RNN: a loop over the steps, written out if it is short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from onward.backends.graph import recurrent
from onward.backends.graph.recurrent import Step
from onward.backends.tensorflow.framework import TENSORFLOW, shape_of, sized
from onward.backends.tensorflow.ops.control_flow import repeat
from onward.backends.tensorflow.registry import op

_UNROLLED = 32


def _clamp(x: tf.Tensor, low: Any, high: Any) -> tf.Tensor:
    return tf.where(x < low, tf.cast(low, x.dtype), tf.where(x > high, tf.cast(high, x.dtype), x))


class Recurrent(recurrent.Recurrent):
    """The three operators on TensorFlow."""

    activations = {
        "sigmoid": tf.sigmoid, "tanh": tf.tanh, "relu": tf.nn.relu, "softsign": tf.nn.softsign,
        "softplus": tf.nn.softplus, "leakyrelu": tf.nn.leaky_relu,
        "elu": lambda x, a: tf.where(x > 0, x, a * tf.math.expm1(tf.minimum(x, 0))),
        "thresholdedrelu": lambda x, a: tf.where(x > a, x, tf.zeros_like(x)),
        "hardsigmoid": lambda x, a, b: _clamp(a * x + b, 0, 1),
        "scaledtanh": lambda x, a, b: a * tf.tanh(b * x),
        "affine": lambda x, a, b: a * x + b,
    }  # fmt: skip

    def clamp(self, x: tf.Tensor, low: float, high: float) -> tf.Tensor:
        return _clamp(x, low, high)

    def transpose(self, x: tf.Tensor, order: tuple[int, ...]) -> tf.Tensor:
        return tf.transpose(x, order)

    def where(self, condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.where(condition, x, y)

    def zeros(self, sizes: Sequence[Any], like: tf.Tensor) -> tf.Tensor:
        return tf.zeros(sized(sizes), like.dtype)

    def loop(
        self, step: Step, X: tf.Tensor, state: tuple[Any, ...], backwards: bool
    ) -> tuple[tf.Tensor, Sequence[Any]]:
        steps = shape_of(X)[0]
        if isinstance(steps, int) and (tf.executing_eagerly() or steps <= _UNROLLED):
            return super().loop(step, X, state, backwards)

        def one(index: Any, on: Any, values: list[Any]) -> tuple[Any, list[Any], list[Any]]:
            t = steps - 1 - index if backwards else index
            output, *new = step(tf.cast(t, tf.int32), X[t], *values)
            return on, new, [output]

        final, (Y,) = repeat(one, tf.constant(True), tf.cast(steps, tf.int64), list(state))
        return tf.reverse(Y, [0]) if backwards else Y, final


op("RNN", "GRU", "LSTM")(Recurrent(TENSORFLOW).run)
