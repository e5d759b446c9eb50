"""A bag of embeddings: the mean of some rows of a large table is classified."""

from __future__ import annotations

import functools
from typing import Any

from workloads.base import CLASSES, Workload


def build(vocabulary: int, width: int) -> Any:
    from torch import nn

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.fc = nn.Linear(width, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(self.embed(x).mean(1))

    return Bag()


def forward(layers: Any, x: Any) -> Any:
    return layers.linear(layers.mean(layers.embedding(x, "embed"), 1), "fc")


def sized(
    name: str = "",
    *,
    batch: int = 256,
    length: int = 32,
    width: int = 64,
    vocabulary: int = 100_000,
    optimizer: str = "adam",
) -> Workload:
    """Return the bag of `length` rows of `width`."""
    return Workload(
        name, functools.partial(build, vocabulary, width), forward, (batch, length), vocabulary, optimizer
    )  # fmt: skip


WORKLOADS = (sized("embedding-256"),)
