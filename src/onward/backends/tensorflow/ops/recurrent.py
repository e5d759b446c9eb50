"""LSTM, GRU and RNN: a loop over the steps, written out if it is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onward.backends.graph.recurrent import Activation, Step, activations_of, gru_step, lstm_step, rnn_step
from onward.backends.tensorflow.framework import shape_of, sized
from onward.backends.tensorflow.ops.control_flow import repeat
from onward.backends.tensorflow.registry import Attributes, op

_UNROLLED = 32


def _clamp(x: tf.Tensor, low: Any, high: Any) -> tf.Tensor:
    return tf.where(x < low, tf.cast(low, x.dtype), tf.where(x > high, tf.cast(high, x.dtype), x))


_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "sigmoid": tf.sigmoid, "tanh": tf.tanh, "relu": tf.nn.relu, "softsign": tf.nn.softsign,
    "softplus": tf.nn.softplus, "leakyrelu": tf.nn.leaky_relu,
    "elu": lambda x, a: tf.where(x > 0, x, a * tf.math.expm1(tf.minimum(x, 0))),
    "thresholdedrelu": lambda x, a: tf.where(x > a, x, tf.zeros_like(x)),
    "hardsigmoid": lambda x, a, b: _clamp(a * x + b, 0, 1),
    "scaledtanh": lambda x, a, b: a * tf.tanh(b * x),
    "affine": lambda x, a, b: a * x + b,
}  # fmt: skip


class _Layer:
    """What the three operators have in common: layout, directions, initial values, sequence lengths."""

    def __init__(self, attributes: Attributes, X: tf.Tensor, W: tf.Tensor, lengths: Any) -> None:
        self.attributes = attributes
        self.batchwise = bool(attributes.get("layout", 0))
        self.X = tf.transpose(X, [1, 0, 2]) if self.batchwise else X
        self.steps, self.batch, _ = shape_of(self.X)
        self.directions = W.shape[0]
        self.hidden = attributes["hidden_size"]
        self.reverse = attributes.get("direction", "forward") == "reverse"
        self.lengths = None if lengths is None else tf.cast(lengths, tf.int64)

    def initial(self, given: Any) -> tf.Tensor:
        if given is None:
            return tf.zeros(sized([self.directions, self.batch, self.hidden]), self.X.dtype)
        return tf.transpose(given, [1, 0, 2]) if self.batchwise else given

    def run_all(
        self, first: tuple[tf.Tensor, ...], cell: Callable[[int, Sequence[Activation]], Step]
    ) -> tuple[tf.Tensor, ...]:
        """Run every direction; return Y and the final states in the node's layout."""
        done = []
        for d in range(self.directions):
            activations = activations_of(self.attributes, d, _ACTIVATIONS, _clamp)
            done.append(self._run(d, [v[d] for v in first], cell(d, activations)))
        Y = tf.stack([y for y, _ in done], 1)
        finals = [tf.stack([state[i] for _, state in done]) for i in range(len(first))]
        if not self.batchwise:
            return (Y, *finals)
        return (tf.transpose(Y, [2, 0, 1, 3]), *(tf.transpose(f, [1, 0, 2]) for f in finals))

    def _run(self, direction: int, state: list[Any], cell: Step) -> tuple[tf.Tensor, list[Any]]:
        """Run one direction; return its outputs [steps, batch, hidden] and the final state."""
        backwards = self.reverse or direction == 1

        def step(index: Any, on: Any, values: list[Any]) -> tuple[Any, list[Any], list[Any]]:
            t = self.steps - 1 - index if backwards else index
            new = list(cell(self.X[t], *values))
            output = new[0]
            if self.lengths is not None:
                active = (t < self.lengths)[:, None]
                output = tf.where(active, output, tf.zeros_like(output))
                new = [tf.where(active, n, s) for n, s in zip(new, values, strict=True)]
            return on, new, [output]

        if isinstance(self.steps, int) and (tf.executing_eagerly() or self.steps <= _UNROLLED):
            outputs = []
            for index in range(self.steps):
                _, state, (output,) = step(index, None, state)
                outputs.append(output)
            Y = tf.stack(outputs) if outputs else tf.zeros(sized([0, self.batch, self.hidden]), self.X.dtype)
        else:
            state, (Y,) = repeat(step, tf.constant(True), tf.cast(self.steps, tf.int64), state)
        return tf.reverse(Y, [0]) if backwards else Y, state


def _of(value: tf.Tensor | None, direction: int) -> tf.Tensor | None:
    return None if value is None else value[direction]


def _turned(value: tf.Tensor, direction: int) -> tf.Tensor:
    return tf.transpose(value[direction])


@op("RNN")
def rnn(
    attributes: Attributes, X: tf.Tensor, W: tf.Tensor, R: tf.Tensor, B: Any = None, sequence_lens: Any = None,
    h: Any = None,
) -> Any:  # fmt: skip
    layer = _Layer(attributes, X, W, sequence_lens)
    return layer.run_all(
        (layer.initial(h),), lambda d, f: rnn_step(f, _turned(W, d), _turned(R, d), _of(B, d), layer.hidden)
    )


@op("GRU")
def gru(
    attributes: Attributes, X: tf.Tensor, W: tf.Tensor, R: tf.Tensor, B: Any = None, sequence_lens: Any = None,
    h: Any = None,
) -> Any:  # fmt: skip
    layer = _Layer(attributes, X, W, sequence_lens)
    linear = bool(attributes.get("linear_before_reset", 0))

    def cell(d: int, f: Sequence[Activation]) -> Step:
        return gru_step(f, _turned(W, d), _turned(R, d), _of(B, d), layer.hidden, linear_before_reset=linear)

    return layer.run_all((layer.initial(h),), cell)


@op("LSTM")
def lstm(
    attributes: Attributes, X: tf.Tensor, W: tf.Tensor, R: tf.Tensor, B: Any = None, sequence_lens: Any = None,
    h: Any = None, c: Any = None, P: Any = None,
) -> Any:  # fmt: skip
    layer = _Layer(attributes, X, W, sequence_lens)
    tied = bool(attributes.get("input_forget", 0))

    def cell(d: int, f: Sequence[Activation]) -> Step:
        return lstm_step(f, _turned(W, d), _turned(R, d), _of(B, d), _of(P, d), layer.hidden, input_forget=tied)

    return layer.run_all((layer.initial(h), layer.initial(c)), cell)
