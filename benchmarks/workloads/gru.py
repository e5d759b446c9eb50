"""Two layers of GRU of width 256 over sequences of 64; the last output is classified."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload

WIDTH, LAYERS = 256, 2


def build() -> Any:
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(WIDTH, WIDTH, num_layers=LAYERS, batch_first=True)
            self.fc = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(self.rnn(x)[0][:, -1])

    return Classifier()


def jax(layers: Any, x: Any) -> Any:
    x = x.swapaxes(0, 1)
    for i in range(LAYERS):
        x = layers.gru(x, "rnn", i)
    return layers.linear(x[-1], "fc")


WORKLOADS = (Workload("gru-32", build, jax, (32, 64, WIDTH)),)
