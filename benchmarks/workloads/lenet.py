"""LeNet on 28 × 28 images."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload


def build() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES),
    )  # fmt: skip


def jax(layers: Any, x: Any) -> Any:
    x = layers.to_nhwc(x)
    x = layers.max_pool(layers.relu(layers.conv(x, "0", padding=2)))
    x = layers.max_pool(layers.relu(layers.conv(x, "3")))
    x = layers.to_nchw(x).reshape(x.shape[0], -1)
    x = layers.relu(layers.linear(x, "7"))
    return layers.linear(layers.relu(layers.linear(x, "9")), "11")


WORKLOADS = (Workload("lenet-64", build, jax, (64, 1, 28, 28)),)
