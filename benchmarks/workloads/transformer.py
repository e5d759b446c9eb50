"""A transformer encoder: four layers of width 256 with four heads, sequences of 128."""

from __future__ import annotations

from typing import Any

from workloads.base import CLASSES, Workload

VOCABULARY, WIDTH, HEADS, LAYERS = 1000, 256, 4, 4


def build() -> Any:
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.fc = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.fc(self.layers(self.embed(x)).mean(1))

    return Encoder()


def jax(layers: Any, x: Any) -> Any:
    x = layers.embedding(x, "embed")
    for i in range(LAYERS):
        at = f"layers.layers.{i}"
        x = layers.layer_norm(x + layers.attention(x, f"{at}.self_attn", HEADS), f"{at}.norm1")
        y = layers.linear(layers.relu(layers.linear(x, f"{at}.linear1")), f"{at}.linear2")
        x = layers.layer_norm(x + y, f"{at}.norm2")
    return layers.linear(x.mean(1), "fc")


WORKLOADS = (Workload("transformer-8", build, jax, (8, 128), VOCABULARY),)
