"""LSTM, GRU and RNN, as `lax.scan` over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onward.backends.graph.recurrent import Activation, Step, activations_of, gru_step, lstm_step, rnn_step
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array

_ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh, "relu": jax.nn.relu, "softsign": jax.nn.soft_sign,
    "softplus": jax.nn.softplus,
    "leakyrelu": lambda x, a: jnp.where(x > 0, x, a * x),
    "elu": lambda x, a: jnp.where(x > 0, x, a * jnp.expm1(jnp.where(x > 0, 0, x))),
    "thresholdedrelu": lambda x, a: jnp.where(x > a, x, 0),
    "hardsigmoid": lambda x, a, b: jnp.clip(a * x + b, 0, 1),
    "scaledtanh": lambda x, a, b: a * jnp.tanh(b * x),
    "affine": lambda x, a, b: a * x + b,
}  # fmt: skip


class _Layer:
    """What the three operators have in common: layout, directions, initial values, sequence lengths."""

    def __init__(self, attributes: Attributes, X: Array, W: Array, lengths: Any) -> None:
        self.attributes = attributes
        self.batchwise = bool(attributes.get("layout", 0))
        self.X = X.swapaxes(0, 1) if self.batchwise else X
        self.directions = W.shape[0]
        self.hidden = attributes["hidden_size"]
        self.reverse = attributes.get("direction", "forward") == "reverse"
        self.lengths = lengths

    def initial(self, given: Any) -> Array:
        if given is None:
            return jnp.zeros((self.directions, self.X.shape[1], self.hidden), self.X.dtype)
        return given.swapaxes(0, 1) if self.batchwise else given

    def run(self, first: tuple[Array, ...], cell: Callable[[int, Sequence[Activation]], Step]) -> tuple[Array, ...]:
        """Run every direction; `cell(direction, activations)` is its step."""
        done = []
        for d in range(self.directions):
            step = cell(d, activations_of(self.attributes, d, _ACTIVATIONS, jnp.clip))
            done.append(self._run(d, tuple(v[d] for v in first), step))
        Y = jnp.stack([y for y, _ in done], 1)
        finals = [jnp.stack([state[i] for _, state in done]) for i in range(len(first))]
        if not self.batchwise:
            return (Y, *finals)
        return (Y.transpose(2, 0, 1, 3), *(f.swapaxes(0, 1) for f in finals))

    def _run(self, direction: int, state: tuple[Array, ...], step: Step) -> tuple[Array, tuple[Array, ...]]:
        """Run one direction; return its outputs [steps, batch, hidden] and the final state."""

        def one(before: tuple[Array, ...], at: Any) -> tuple[tuple[Array, ...], Array]:
            x, t = at
            new = tuple(n.astype(s.dtype) for n, s in zip(step(x, *before), before, strict=True))
            if self.lengths is None:
                return new, new[0]
            active = (t < self.lengths)[:, None]
            kept = tuple(jnp.where(active, n, s) for n, s in zip(new, before, strict=True))
            return kept, jnp.where(active, new[0], 0)

        times = jnp.arange(self.X.shape[0])
        final, outputs = lax.scan(one, state, (self.X, times), reverse=self.reverse or direction == 1)
        return outputs, final


def _of(value: Any, direction: int) -> Any:
    return None if value is None else value[direction]


@op("RNN")
def rnn(
    attributes: Attributes, X: Array, W: Array, R: Array, B: Any = None, sequence_lens: Any = None, h: Any = None
) -> Any:
    layer = _Layer(attributes, X, W, sequence_lens)
    return layer.run((layer.initial(h),), lambda d, f: rnn_step(f, W[d].T, R[d].T, _of(B, d), layer.hidden))


@op("GRU")
def gru(
    attributes: Attributes, X: Array, W: Array, R: Array, B: Any = None, sequence_lens: Any = None, h: Any = None
) -> Any:
    layer = _Layer(attributes, X, W, sequence_lens)
    linear = bool(attributes.get("linear_before_reset", 0))
    return layer.run(
        (layer.initial(h),),
        lambda d, f: gru_step(f, W[d].T, R[d].T, _of(B, d), layer.hidden, linear_before_reset=linear),
    )


@op("LSTM")
def lstm(
    attributes: Attributes, X: Array, W: Array, R: Array, B: Any = None, sequence_lens: Any = None, h: Any = None,
    c: Any = None, P: Any = None,
) -> Any:  # fmt: skip
    layer = _Layer(attributes, X, W, sequence_lens)
    tied = bool(attributes.get("input_forget", 0))
    return layer.run(
        (layer.initial(h), layer.initial(c)),
        lambda d, f: lstm_step(f, W[d].T, R[d].T, _of(B, d), _of(P, d), layer.hidden, input_forget=tied),
    )
