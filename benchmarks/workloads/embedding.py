"""A bag of embeddings: 32 of 100,000 rows of 64, their mean classified."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload

VOCABULARY, WIDTH = 100_000, 64


def build() -> Any:
    from torch import nn

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.fc = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(self.embed(x).mean(1))

    return Bag()


def jax(layers: Any, x: Any) -> Any:
    return layers.linear(layers.embedding(x, "embed").mean(1), "fc")


WORKLOADS = (Workload("embedding-256", build, jax, (256, 32), VOCABULARY),)
