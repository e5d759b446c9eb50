"""A perceptron, 784-512-512-10 if nothing else is said."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload


def sized(name: str = "", *, batch: int = 64, width: int = 512, depth: int = 2, optimizer: str = "adam") -> Workload:
    """Return the perceptron with `depth` hidden layers of `width`."""

    def build() -> Any:
        from torch import nn

        layers: list[Any] = []
        for before in (784, *[width] * (depth - 1)):
            layers += [nn.Linear(before, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))

    def forward(layers: Any, x: Any) -> Any:
        for i in range(depth):
            x = layers.relu(layers.linear(x, f"{2 * i}"))
        return layers.linear(x, f"{2 * depth}")

    return Workload(name, build, forward, (batch, 784), optimizer=optimizer)


WORKLOADS = (
    sized("mlp-64"),
    sized("mlp-256", batch=256),
    sized("mlp-64-sgd", optimizer="sgd"),
)
