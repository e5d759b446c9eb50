"""Depthwise separable convolutions with batch normalisation, on 32 × 32 images."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload

PAIRS = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))  # channels in and out, stride


def build() -> Any:
    from torch import nn

    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    for before, width, stride in PAIRS:
        layers += [
            nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before), nn.ReLU(),
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        ]  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES))


def jax(layers: Any, x: Any) -> Any:
    x = layers.to_nhwc(x)
    x = layers.relu(layers.batch_norm(layers.conv(x, "0", padding=1), "1"))
    for i, (before, _, stride) in enumerate(PAIRS):
        at = 3 + 6 * i
        x = layers.conv(x, f"{at}", stride=stride, padding=1, groups=before)
        x = layers.relu(layers.batch_norm(x, f"{at + 1}"))
        x = layers.relu(layers.batch_norm(layers.conv(x, f"{at + 3}"), f"{at + 4}"))
    return layers.linear(x.mean((1, 2)), "35")


WORKLOADS = (Workload("mobilenet-32", build, jax, (32, 3, 32, 32)),)
