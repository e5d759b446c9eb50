"""LSTM, GRU and RNN: torch's kernels if they compute the same, else a loop over the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onward.backends.graph import recurrent
from onward.backends.graph.recurrent import Layer
from onward.backends.torch.framework import TORCH
from onward.backends.torch.registry import op

# torch's kernels, and the order in which they want the gates: z r h is r z n there, and i o f c is i f g o.
_KERNELS: dict[str, tuple[Callable[..., Any], list[int]]] = {
    "RNN": (torch.rnn_tanh, [0]), "GRU": (torch.gru, [1, 0, 2]), "LSTM": (torch.lstm, [0, 2, 3, 1]),
}  # fmt: skip


class Recurrent(recurrent.Recurrent):
    """The three operators on PyTorch."""

    activations = {
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "softsign": F.softsign,
        "softplus": F.softplus, "leakyrelu": F.leaky_relu, "elu": F.elu,
        "thresholdedrelu": lambda x, a: torch.where(x > a, x, torch.zeros_like(x)),
        "hardsigmoid": lambda x, a, b: torch.clamp(a * x + b, 0, 1),
        "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
        "affine": lambda x, a, b: a * x + b,
    }  # fmt: skip

    def clamp(self, x: Tensor, low: float, high: float) -> Tensor:
        return torch.clamp(x, low, high)

    def transpose(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        return x.permute(order)

    def where(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.where(condition, x, y)

    def zeros(self, sizes: Sequence[Any], like: Tensor) -> Tensor:
        return like.new_zeros(sizes)

    def directions(self, layer: Layer) -> tuple[Any, ...]:
        if _is_usual(layer):
            return _with_kernel(layer)
        lengths = None if layer.lengths is None else layer.lengths.to(layer.X.device)
        return super().directions(dataclasses.replace(layer, lengths=lengths))


def _is_usual(layer: Layer) -> bool:
    """Return whether torch's kernels compute this node: usual activations and gates, all steps, not only backwards."""
    attributes = layer.attributes
    unusual = any(attributes.get(name) for name in ("activations", "clip", "input_forget"))
    unusual = unusual or layer.lengths is not None or layer.P is not None
    unusual = unusual or attributes.get("direction", "forward") == "reverse"
    unusual = unusual or (attributes.op_type == "GRU" and not attributes.get("linear_before_reset", 0))
    return not unusual and layer.X.is_floating_point()


def _with_kernel(layer: Layer) -> tuple[Tensor, ...]:
    kernel, order = _KERNELS[layer.attributes.op_type]
    directions, hidden = layer.W.shape[0], layer.attributes["hidden_size"]
    weights: list[Tensor] = []
    for d in range(directions):
        parts = [layer.W[d], layer.R[d], *([] if layer.B is None else layer.B[d].chunk(2))]
        weights += [torch.cat([part.split(hidden)[i] for i in order]) for part in parts]
    state = list(layer.first) if len(layer.first) > 1 else layer.first[0]
    Y, *finals = kernel(layer.X, state, weights, layer.B is not None, 1, 0.0, False, directions == 2, False)
    return (Y.unflatten(2, (directions, -1)).transpose(1, 2), *finals)


op("RNN", "GRU", "LSTM")(Recurrent(TORCH).run)
