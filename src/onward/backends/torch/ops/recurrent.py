"""LSTM, GRU and RNN: torch's kernels if they compute the same, else a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.torch.registry import Attributes, op

Activation = Callable[[Tensor], Tensor]


def _activations(attributes: Attributes, defaults: Sequence[str], direction: int) -> list[Activation]:
    """Return the activations of one direction, clipped if the node says so."""
    names = [n.decode() if isinstance(n, bytes) else n for n in attributes.get("activations") or []]
    alphas = list(attributes.get("activation_alpha") or [])
    betas = list(attributes.get("activation_beta") or [])
    count = len(defaults)
    if not names:
        names = list(defaults) * 2
    taken: list[Activation] = []
    for name in names[: direction * count]:
        _one(name, alphas, betas)  # only activations with parameters consume one
    for name in names[direction * count : direction * count + count]:
        taken.append(_one(name, alphas, betas))
    clip = attributes.get("clip")
    if not clip:
        return taken
    return [lambda x, f=f: f(x.clamp(-clip, clip)) for f in taken]  # type: ignore[misc]  # f is bound early


def _one(name: str, alphas: list[float], betas: list[float]) -> Activation:
    def alpha(default: float) -> float:
        return alphas.pop(0) if alphas else default

    def beta(default: float) -> float:
        return betas.pop(0) if betas else default

    plain: dict[str, Activation] = {
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "softsign": F.softsign,
        "softplus": F.softplus,
    }  # fmt: skip
    key = name.lower()
    if key in plain:
        return plain[key]
    if key == "leakyrelu":
        a = alpha(0.01)
        return lambda x: F.leaky_relu(x, a)
    if key == "thresholdedrelu":
        a = alpha(1.0)
        return lambda x: torch.where(x > a, x, torch.zeros_like(x))
    if key == "elu":
        a = alpha(1.0)
        return lambda x: F.elu(x, a)
    a, b = (alpha(0.2), beta(0.5)) if key == "hardsigmoid" else (alpha(1.0), beta(0.0))
    if key == "hardsigmoid":
        return lambda x: torch.clamp(a * x + b, 0, 1)
    if key == "scaledtanh":
        return lambda x: a * torch.tanh(b * x)
    if key == "affine":
        return lambda x: a * x + b
    raise ValueError(f"unknown activation {name}")


class _Layer:
    """What the three operators have in common: layout, directions, initial values, sequence lengths."""

    def __init__(self, attributes: Attributes, X: Tensor, W: Tensor, lengths: Any) -> None:
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

    def run(self, direction: int, state: tuple[Tensor, ...], step: Callable[..., tuple[Tensor, ...]]) -> Any:
        """Run one direction step by step; return its outputs [steps, batch, hidden] and the final state."""
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


def _stack(layer: _Layer, per_direction: list[Any]) -> tuple[Tensor, ...]:
    Y = torch.stack([y for y, _ in per_direction], 1)
    finals = [torch.stack([state[i] for _, state in per_direction]) for i in range(len(per_direction[0][1]))]
    return layer.results(Y, *finals)


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
    done = []
    for d in range(layer.directions):
        (f,) = _activations(attributes, ["Tanh"], d)
        bias = 0 if B is None else B[d].chunk(2)[0] + B[d].chunk(2)[1]

        def step(x: Tensor, h: Tensor, d: int = d, f: Activation = f, bias: Any = bias) -> tuple[Tensor, ...]:
            return (f(x @ W[d].T + h @ R[d].T + bias),)

        done.append(layer.run(d, (first[d],), step))
    return _stack(layer, done)


@op("GRU")
def gru(
    attributes: Attributes, X: Tensor, W: Tensor, R: Tensor, B: Any = None, sequence_lens: Any = None, h: Any = None
) -> Any:
    layer = _Layer(attributes, X, W, sequence_lens)
    first = layer.initial(h)
    if _plain(attributes, layer) and attributes.get("linear_before_reset", 0):
        return _fused(torch.gru, layer, first, _weights(layer, W, R, B, [1, 0, 2]))  # z r h -> r z n
    done = []
    for d in range(layer.directions):
        f, g = _activations(attributes, ["Sigmoid", "Tanh"], d)
        wb, rb = (0, 0) if B is None else B[d].chunk(2)

        def step(
            x: Tensor, h: Tensor, d: int = d, f: Activation = f, g: Activation = g, wb: Any = wb, rb: Any = rb
        ) -> tuple[Tensor, ...]:
            size = layer.hidden
            inputs = x @ W[d].T + wb
            gates = h @ R[d][: 2 * size].T + (rb[: 2 * size] if B is not None else 0)
            z, r = (f(v) for v in (inputs[:, : 2 * size] + gates).chunk(2, 1))
            own = rb[2 * size :] if B is not None else 0
            if attributes.get("linear_before_reset", 0):
                n = g(inputs[:, 2 * size :] + r * (h @ R[d][2 * size :].T + own))
            else:
                n = g(inputs[:, 2 * size :] + (r * h) @ R[d][2 * size :].T + own)
            return ((1 - z) * n + z * h,)

        done.append(layer.run(d, (first[d],), step))
    return _stack(layer, done)


@op("LSTM")
def lstm(
    attributes: Attributes, X: Tensor, W: Tensor, R: Tensor, B: Any = None, sequence_lens: Any = None, h: Any = None,
    c: Any = None, P: Any = None,
) -> Any:  # fmt: skip
    layer = _Layer(attributes, X, W, sequence_lens)
    first, cell = layer.initial(h), layer.initial(c)
    if _plain(attributes, layer) and P is None and not attributes.get("input_forget", 0):
        return _fused(torch.lstm, layer, [first, cell], _weights(layer, W, R, B, [0, 2, 3, 1]))  # i o f c -> i f g o
    done = []
    for d in range(layer.directions):
        f, g, last = _activations(attributes, ["Sigmoid", "Tanh", "Tanh"], d)
        bias = 0 if B is None else B[d].chunk(2)[0] + B[d].chunk(2)[1]
        peeps = (0, 0, 0) if P is None else P[d].chunk(3)

        def step(
            x: Tensor, h: Tensor, c: Tensor, d: int = d, f: Activation = f, g: Activation = g,
            last: Activation = last, bias: Any = bias, peeps: Any = peeps,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            i, o, forget, new = (x @ W[d].T + h @ R[d].T + bias).chunk(4, 1)
            i = f(i + peeps[0] * c)
            forget = 1 - i if attributes.get("input_forget", 0) else f(forget + peeps[2] * c)
            c = forget * c + i * g(new)
            return f(o + peeps[1] * c) * last(c), c

        done.append(layer.run(d, (first[d], cell[d]), step))
    return _stack(layer, done)
