"""LeNet on 28 × 28 images, or on others of a size divisible by 4."""

from __future__ import annotations

import functools
from typing import Any

from workloads.base import CLASSES, Workload


def build(image: int, width: int) -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6 * width, 16 * width, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * width * (image // 4 - 2) ** 2, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES),
    )  # fmt: skip


def forward(layers: Any, x: Any) -> Any:
    x = layers.to_nhwc(x)
    x = layers.max_pool(layers.relu(layers.conv(x, "0", padding=2)))
    x = layers.max_pool(layers.relu(layers.conv(x, "3")))
    x = layers.flatten(layers.to_nchw(x))
    x = layers.relu(layers.linear(x, "7"))
    return layers.linear(layers.relu(layers.linear(x, "9")), "11")


def sized(name: str = "", *, batch: int = 64, image: int = 28, width: int = 1, optimizer: str = "adam") -> Workload:
    """Return LeNet with `width` times as many channels."""
    shape = (batch, 1, image, image)
    return Workload(name, functools.partial(build, image, width), forward, shape, optimizer=optimizer)


WORKLOADS = (sized("lenet-64"),)
