"""Layers of LSTM or GRU over sequences; the last output is classified."""

from __future__ import annotations

import functools
from typing import Any

from workloads.base import CLASSES, Workload


def build(kind: str, width: int, depth: int) -> Any:
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, kind)(width, width, num_layers=depth, batch_first=True)
            self.fc = nn.Linear(width, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(self.rnn(x)[0][:, -1])

    return Classifier()


def forward(kind: str, depth: int, layers: Any, x: Any) -> Any:
    for i in range(depth):
        x = getattr(layers, kind.lower())(x, "rnn", i)
    return layers.linear(x[:, -1], "fc")


def sized(
    name: str = "",
    *,
    kind: str,
    batch: int = 32,
    length: int = 64,
    width: int = 256,
    depth: int = 2,
    optimizer: str = "adam",
) -> Workload:
    """Return `depth` layers of `width` over sequences of `length`."""
    parts = functools.partial(build, kind, width, depth), functools.partial(forward, kind, depth)
    return Workload(name, *parts, (batch, length, width), optimizer=optimizer)  # fmt: skip


WORKLOADS = (sized("lstm-32", kind="LSTM"), sized("gru-32", kind="GRU"))
