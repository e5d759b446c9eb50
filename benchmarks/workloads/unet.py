"""A U-Net of three levels on 64 × 64 images; the mean of its last features is classified."""

from __future__ import annotations

import itertools
from typing import Any

from workloads.base import CLASSES, Workload

WIDTHS = (16, 32, 64)


def build() -> Any:
    import torch
    from torch import nn

    def block(before: int, width: int) -> nn.Module:
        layers = [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, width, 3, padding=1), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList(map(block, (3, *WIDTHS[:-1]), WIDTHS))
            self.up = nn.ModuleList(block(a + b, a) for a, b in itertools.pairwise(WIDTHS))
            self.pool, self.enlarge = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
            self.fc = nn.Linear(WIDTHS[0], CLASSES)

        def forward(self, x: Any) -> Any:
            kept = []
            for level, part in enumerate(self.down):
                x = part(self.pool(x) if level else x)
                kept.append(x)
            for level in reversed(range(len(self.up))):
                x = self.up[level](torch.cat([kept[level], self.enlarge(x)], 1))
            return self.fc(x.mean((2, 3)))

    return UNet()


def jax(layers: Any, x: Any) -> Any:
    import jax.numpy as jnp

    def block(x: Any, at: str) -> Any:
        x = layers.relu(layers.batch_norm(layers.conv(x, f"{at}.0", padding=1), f"{at}.1"))
        return layers.relu(layers.conv(x, f"{at}.3", padding=1))

    x = layers.to_nhwc(x)
    kept = []
    for level in range(len(WIDTHS)):
        x = block(layers.max_pool(x) if level else x, f"down.{level}")
        kept.append(x)
    for level in reversed(range(len(WIDTHS) - 1)):
        x = block(jnp.concatenate([kept[level], layers.enlarge(x)], -1), f"up.{level}")
    return layers.linear(x.mean((1, 2)), "fc")


WORKLOADS = (Workload("unet-8", build, jax, (8, 3, 64, 64)),)
