"""ResNet-18 for small images: a 3 × 3 stem and no first pooling."""

from __future__ import annotations

import functools
from typing import Any

from workloads.base import CLASSES, Workload

BLOCKS = ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1))  # times the width, and stride


def build(width: int) -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
            self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
            self.relu = nn.ReLU()
            self.short: nn.Module = nn.Identity()
            if stride != 1 or before != after:
                self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + self.short(x))

    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for times, stride in BLOCKS:
        layers.append(Block(before, times * width, stride))
        before = times * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def forward(width: int, layers: Any, x: Any) -> Any:
    x = layers.to_nhwc(x)
    x = layers.relu(layers.batch_norm(layers.conv(x, "0", padding=1), "1"))
    for i, (times, stride) in enumerate(BLOCKS, start=3):
        y = layers.relu(layers.batch_norm(layers.conv(x, f"{i}.conv1", stride=stride, padding=1), f"{i}.bn1"))
        y = layers.batch_norm(layers.conv(y, f"{i}.conv2", padding=1), f"{i}.bn2")
        if stride != 1 or x.shape[-1] != times * width:
            x = layers.batch_norm(layers.conv(x, f"{i}.short.0", stride=stride), f"{i}.short.1")
        x = layers.relu(x + y)
    return layers.linear(layers.mean(x, (1, 2)), "13")


def sized(name: str = "", *, batch: int = 32, image: int = 32, width: int = 64, optimizer: str = "adam") -> Workload:
    """Return the network whose first layer has `width` channels."""
    shape = (batch, 3, image, image)
    parts = functools.partial(build, width), functools.partial(forward, width)
    return Workload(name, *parts, shape, optimizer=optimizer)


WORKLOADS = (sized("resnet18-32"), sized("resnet18-32-sgd", optimizer="sgd"))
