"""Depthwise separable convolutions with batch normalisation, on 32 × 32 images if nothing else is said."""

from __future__ import annotations

import functools
from typing import Any

from workloads.base import CLASSES, Workload

PAIRS = ((1, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1))  # channels in and out, times the width, and stride


def build(width: int) -> Any:
    from torch import nn

    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for times, result, stride in PAIRS:
        before, after = times * width, result * width
        layers += [
            nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before), nn.ReLU(),
            nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        ]  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, CLASSES))


def forward(width: int, layers: Any, x: Any) -> Any:
    x = layers.to_nhwc(x)
    x = layers.relu(layers.batch_norm(layers.conv(x, "0", padding=1), "1"))
    for i, (times, _, stride) in enumerate(PAIRS):
        at = 3 + 6 * i
        x = layers.conv(x, f"{at}", stride=stride, padding=1, groups=times * width)
        x = layers.relu(layers.batch_norm(x, f"{at + 1}"))
        x = layers.relu(layers.batch_norm(layers.conv(x, f"{at + 3}"), f"{at + 4}"))
    return layers.linear(layers.mean(x, (1, 2)), "35")


def sized(name: str = "", *, batch: int = 32, image: int = 32, width: int = 32, optimizer: str = "adam") -> Workload:
    """Return the network whose first layer has `width` channels."""
    shape = (batch, 3, image, image)
    parts = functools.partial(build, width), functools.partial(forward, width)
    return Workload(name, *parts, shape, optimizer=optimizer)


WORKLOADS = (sized("mobilenet-32"),)
