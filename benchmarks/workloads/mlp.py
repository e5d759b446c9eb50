"""A perceptron, 784-512-512-10 in the table and of any width and depth in `growth.py`."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload


def sized(batch: int, width: int, depth: int, optimizer: str = "adam", name: str = "") -> Workload:
    """Return the perceptron with `depth` hidden layers of `width`."""

    def build() -> Any:
        from torch import nn

        layers: list[Any] = []
        for before in (784, *[width] * (depth - 1)):
            layers += [nn.Linear(before, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))

    def jax(layers: Any, x: Any) -> Any:
        for i in range(depth):
            x = layers.relu(layers.linear(x, f"{2 * i}"))
        return layers.linear(x, f"{2 * depth}")

    return Workload(name or f"mlp:{batch}x{width}x{depth}", build, jax, (batch, 784), optimizer=optimizer)


WORKLOADS = (
    sized(64, 512, 2, name="mlp-64"),
    sized(256, 512, 2, name="mlp-256"),
    sized(64, 512, 2, "sgd", name="mlp-64-sgd"),
)
