"""A transformer encoder: layers with heads of 64, and a feed-forward part four times as wide."""

from __future__ import annotations

import functools
from typing import Any

from workloads.base import CLASSES, Workload

HEAD = 64  # the width of a head


def build(vocabulary: int, width: int, depth: int) -> Any:
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            layer = nn.TransformerEncoderLayer(width, width // HEAD, 4 * width, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
            self.fc = nn.Linear(width, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(self.layers(self.embed(x)).mean(1))

    return Encoder()


def forward(width: int, depth: int, layers: Any, x: Any) -> Any:
    x = layers.embedding(x, "embed")
    for i in range(depth):
        at = f"layers.layers.{i}"
        x = layers.layer_norm(x + layers.attention(x, f"{at}.self_attn", width // HEAD), f"{at}.norm1")
        y = layers.linear(layers.relu(layers.linear(x, f"{at}.linear1")), f"{at}.linear2")
        x = layers.layer_norm(x + y, f"{at}.norm2")
    return layers.linear(layers.mean(x, 1), "fc")


def sized(
    name: str = "",
    *,
    batch: int = 8,
    length: int = 128,
    width: int = 256,
    depth: int = 4,
    vocabulary: int = 1000,
    optimizer: str = "adam",
) -> Workload:
    """Return `depth` layers of `width` over sequences of `length`."""
    parts = functools.partial(build, vocabulary, width, depth), functools.partial(forward, width, depth)
    return Workload(name, *parts, (batch, length), vocabulary, optimizer)


WORKLOADS = (sized("transformer-8"),)
