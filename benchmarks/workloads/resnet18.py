"""ResNet-18 for 32 × 32 images: a 3 × 3 stem and no first pooling."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload

BLOCKS = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))  # width and stride


def build() -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
            self.relu = nn.ReLU()
            self.short: nn.Module = nn.Identity()
            if stride != 1 or before != width:
                self.short = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + self.short(x))

    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for width, stride in BLOCKS:
        layers.append(Block(before, width, stride))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def jax(layers: Any, x: Any) -> Any:
    x = layers.to_nhwc(x)
    x = layers.relu(layers.batch_norm(layers.conv(x, "0", padding=1), "1"))
    for i, (width, stride) in enumerate(BLOCKS, start=3):
        y = layers.relu(layers.batch_norm(layers.conv(x, f"{i}.conv1", stride=stride, padding=1), f"{i}.bn1"))
        y = layers.batch_norm(layers.conv(y, f"{i}.conv2", padding=1), f"{i}.bn2")
        if stride != 1 or x.shape[-1] != width:
            x = layers.batch_norm(layers.conv(x, f"{i}.short.0", stride=stride), f"{i}.short.1")
        x = layers.relu(x + y)
    return layers.linear(x.mean((1, 2)), "13")


WORKLOADS = (
    Workload("resnet18-32", build, jax, (32, 3, 32, 32)),
    Workload("resnet18-32-sgd", build, jax, (32, 3, 32, 32), optimizer="sgd"),
)
