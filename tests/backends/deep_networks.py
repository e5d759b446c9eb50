"""ResNet-18 and MobileNetV2 in PyTorch: all of their layers, with fewer channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _conv(inside: int, outside: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    made = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return [made, nn.BatchNorm2d(outside)]


class _Residual(nn.Module):
    """The sum of a body and a shortcut."""

    def __init__(self, body: list[nn.Module], shortcut: list[nn.Module], *, relu: bool) -> None:
        super().__init__()
        self.body, self.shortcut, self.relu = nn.Sequential(*body), nn.Sequential(*shortcut), relu

    def forward(self, x: Tensor) -> Tensor:
        total = self.body(x) + self.shortcut(x)
        return torch.relu(total) if self.relu else total


def resnet18(width: int = 8, classes: int = 5) -> nn.Module:
    """Return ResNet-18; `width` is 64 in the paper."""
    layers: list[nn.Module] = [*_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = width
    for stage in range(4):
        outside = width * 2**stage
        for stride in (2 if stage else 1, 1):
            body = [*_conv(inside, outside, 3, stride), nn.ReLU(), *_conv(outside, outside, 3)]
            shortcut = _conv(inside, outside, 1, stride) if stride > 1 else []
            layers.append(_Residual(body, shortcut, relu=True))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def mobilenet_v2(width: int = 4, classes: int = 5) -> nn.Module:
    """Return MobileNetV2; `width` is 32 in the paper."""
    layers: list[nn.Module] = [*_conv(3, width, 3, 2), nn.ReLU6()]
    inside = width
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for factor, channels, count, first in stages:
        outside = channels * width // 32
        for index in range(count):
            stride, hidden = first if index == 0 else 1, inside * factor
            grown = [*_conv(inside, hidden, 1), nn.ReLU6()] if factor > 1 else []
            body = [*grown, *_conv(hidden, hidden, 3, stride, hidden), nn.ReLU6(), *_conv(hidden, outside, 1)]
            alone = stride > 1 or inside != outside
            layers.append(nn.Sequential(*body) if alone else _Residual(body, [], relu=False))
            inside = outside
    last = 1280 * width // 32
    layers += [*_conv(inside, last, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(last, classes))
