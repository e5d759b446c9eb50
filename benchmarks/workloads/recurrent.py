"""Two layers of LSTM or GRU of width 256 over sequences of 64; the last output is classified."""

from __future__ import annotations

import functools
from typing import Any

from workloads.base import CLASSES, Workload

WIDTH, LAYERS = 256, 2


def build(kind: str) -> Any:
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, kind)(WIDTH, WIDTH, num_layers=LAYERS, batch_first=True)
            self.fc = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(self.rnn(x)[0][:, -1])

    return Classifier()


def jax(kind: str, layers: Any, x: Any) -> Any:
    x = x.swapaxes(0, 1)
    for i in range(LAYERS):
        x = getattr(layers, kind.lower())(x, "rnn", i)
    return layers.linear(x[-1], "fc")


WORKLOADS = tuple(
    Workload(f"{kind.lower()}-32", functools.partial(build, kind), functools.partial(jax, kind), (32, 64, WIDTH))
    for kind in ("LSTM", "GRU")
)
