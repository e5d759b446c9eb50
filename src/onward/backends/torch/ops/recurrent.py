"""LSTM, GRU and RNN: torch's kernels if they compute the same, else a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.graph.recurrent import Activation, Step, activations_of, gru_step, lstm_step, rnn_step
from onward.backends.torch.registry import Attributes, op

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "softsign": F.softsign, "softplus": F.softplus,
    "leakyrelu": F.leaky_relu, "elu": F.elu,
    "thresholdedrelu": lambda x, a: torch.where(x > a, x, torch.zeros_like(x)),
    "hardsigmoid": lambda x, a, b: torch.clamp(a * x + b, 0, 1),
    "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
    "affine": lambda x, a, b: a * x + b,
}  # fmt: skip


class _Layer:
    """What the three operators have in common: layout, directions, initial values, sequence lengths."""

    def __init__(self, attributes: Attributes, X: Tensor, W: Tensor, lengths: Any) -> None:
        self.attributes = attributes
        self.batchwise = bool(attributes.get("layout", 0))
        self.X = X.transpose(0, 1) if self.batchwise else X
        self.steps, self.batch = self.X.shape[0], self.X.shape[1]
        self.directions = W.shape[0]
        self.hidden = attributes["hidden_size"]
        self.reverse = attributes.get("direction", "forward") == "reverse"
        self.lengths = lengths

    def initial(self, given: Any) -> Tensor:
        if given is None:
            return self.X.new_zeros(self.directions, self.batch, self.hidden)
        return given.transpose(0, 1) if self.batchwise else given

    def results(self, Y: Tensor, *finals: Tensor) -> tuple[Tensor, ...]:
        """Return [steps, directions, batch, hidden] and [directions, batch, hidden] in the node's layout."""
        if not self.batchwise:
            return (Y, *finals)
        return (Y.permute(2, 0, 1, 3), *(f.transpose(0, 1) for f in finals))

    def run_all(
        self, first: tuple[Tensor, ...], cell: Callable[[int, Sequence[Activation]], Step]
    ) -> tuple[Tensor, ...]:
        """Run every direction step by step; `cell(direction, activations)` is its step."""
        done = []
        for d in range(self.directions):
            activations = activations_of(self.attributes, d, _ACTIVATIONS, torch.clamp)
            done.append(self._run(d, tuple(v[d] for v in first), cell(d, activations)))
        Y = torch.stack([y for y, _ in done], 1)
        return self.results(Y, *(torch.stack([state[i] for _, state in done]) for i in range(len(first))))

    def _run(self, direction: int, state: tuple[Tensor, ...], step: Step) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one direction; return its outputs [steps, batch, hidden] and the final state."""
        order = range(self.steps)
        backwards = self.reverse or direction == 1
        outputs: list[Tensor] = [state[0]] * self.steps
        for t in reversed(order) if backwards else order:
            new = step(self.X[t], *state)
            output = new[0]
            if self.lengths is not None:
                active = (t < self.lengths.to(self.X.device)).unsqueeze(1)
                output = torch.where(active, output, torch.zeros_like(output))
                new = tuple(torch.where(active, n, s) for n, s in zip(new, state, strict=True))
            outputs[t], state = output, new
        return torch.stack(outputs), state


def _of(value: Tensor | None, direction: int) -> Tensor | None:
    return None if value is None else value[direction]


def _plain(attributes: Attributes, layer: _Layer) -> bool:
    """Return whether torch's kernels compute this node: usual activations, all steps, not only backwards."""
    unusual = attributes.get("activations") or attributes.get("clip") or layer.lengths is not None or layer.reverse
    return not unusual and layer.X.is_floating_point()


def _fused(function: Any, layer: _Layer, state: Any, weights: list[Tensor]) -> tuple[Tensor, ...]:
    Y, *finals = function(layer.X, state, weights, len(weights) > 2 * layer.directions, 1, 0.0, False,
                          layer.directions == 2, False)  # fmt: skip
    return layer.results(Y.unflatten(2, (layer.directions, -1)).transpose(1, 2), *finals)


def _reordered(value: Tensor, order: Sequence[int], hidden: int) -> Tensor:
    """Return the blocks of `hidden` rows in another order."""
    blocks = value.split(hidden)
    return torch.cat([blocks[i] for i in order])


def _weights(layer: _Layer, W: Tensor, R: Tensor, B: Any, order: Sequence[int]) -> list[Tensor]:
    weights = []
    for d in range(layer.directions):
        parts = [W[d], R[d]] if B is None else [W[d], R[d], *B[d].chunk(2)]
        weights += [_reordered(p, order, layer.hidden) for p in parts]
    return weights


@op("RNN")
def rnn(
    attributes: Attributes, X: Tensor, W: Tensor, R: Tensor, B: Any = None, sequence_lens: Any = None, h: Any = None
) -> Any:
    layer = _Layer(attributes, X, W, sequence_lens)
    first = layer.initial(h)
    if _plain(attributes, layer):
        return _fused(torch.rnn_tanh, layer, first, _weights(layer, W, R, B, [0]))
    return layer.run_all((first,), lambda d, f: rnn_step(f, W[d].T, R[d].T, _of(B, d), layer.hidden))


@op("GRU")
def gru(
    attributes: Attributes, X: Tensor, W: Tensor, R: Tensor, B: Any = None, sequence_lens: Any = None, h: Any = None
) -> Any:
    layer = _Layer(attributes, X, W, sequence_lens)
    first = layer.initial(h)
    if _plain(attributes, layer) and attributes.get("linear_before_reset", 0):
        return _fused(torch.gru, layer, first, _weights(layer, W, R, B, [1, 0, 2]))  # z r h -> r z n
    linear = bool(attributes.get("linear_before_reset", 0))
    return layer.run_all(
        (first,), lambda d, f: gru_step(f, W[d].T, R[d].T, _of(B, d), layer.hidden, linear_before_reset=linear)
    )


@op("LSTM")
def lstm(
    attributes: Attributes, X: Tensor, W: Tensor, R: Tensor, B: Any = None, sequence_lens: Any = None, h: Any = None,
    c: Any = None, P: Any = None,
) -> Any:  # fmt: skip
    layer = _Layer(attributes, X, W, sequence_lens)
    first, cell = layer.initial(h), layer.initial(c)
    if _plain(attributes, layer) and P is None and not attributes.get("input_forget", 0):
        return _fused(torch.lstm, layer, [first, cell], _weights(layer, W, R, B, [0, 2, 3, 1]))  # i o f c -> i f g o
    tied = bool(attributes.get("input_forget", 0))
    return layer.run_all(
        (first, cell),
        lambda d, f: lstm_step(f, W[d].T, R[d].T, _of(B, d), _of(P, d), layer.hidden, input_forget=tied),
    )
