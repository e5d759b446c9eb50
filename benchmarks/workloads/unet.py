"""A U-Net; the mean of its last features is classified."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from workloads.base import CLASSES, Workload


def build(widths: tuple[int, ...]) -> Any:
    import torch
    from torch import nn

    def block(before: int, width: int) -> nn.Module:
        layers = [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, width, 3, padding=1), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList(map(block, (3, *widths[:-1]), widths))
            self.up = nn.ModuleList(block(a + b, a) for a, b in itertools.pairwise(widths))
            self.pool, self.enlarge = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
            self.fc = nn.Linear(widths[0], CLASSES)

        def forward(self, x: Any) -> Any:
            kept = []
            for level, part in enumerate(self.down):
                x = part(self.pool(x) if level else x)
                kept.append(x)
            for level in reversed(range(len(self.up))):
                x = self.up[level](torch.cat([kept[level], self.enlarge(x)], 1))
            return self.fc(x.mean((2, 3)))

    return UNet()


def forward(levels: int, layers: Any, x: Any) -> Any:
    def block(x: Any, at: str) -> Any:
        x = layers.relu(layers.batch_norm(layers.conv(x, f"{at}.0", padding=1), f"{at}.1"))
        return layers.relu(layers.conv(x, f"{at}.3", padding=1))

    x = layers.to_nhwc(x)
    kept = []
    for level in range(levels):
        x = block(layers.max_pool(x) if level else x, f"down.{level}")
        kept.append(x)
    for level in reversed(range(levels - 1)):
        x = block(layers.concatenate(kept[level], layers.enlarge(x)), f"up.{level}")
    return layers.linear(layers.mean(x, (1, 2)), "fc")


def sized(
    name: str = "", *, batch: int = 8, image: int = 64, width: int = 16, depth: int = 3, optimizer: str = "adam"
) -> Workload:
    """Return the network of `depth` levels, the first of `width` channels and each next one of twice as many."""
    widths = tuple(width * 2**level for level in range(depth))
    parts = functools.partial(build, widths), functools.partial(forward, depth)
    return Workload(name, *parts, (batch, 3, image, image), optimizer=optimizer)


WORKLOADS = (sized("unet-8"),)
