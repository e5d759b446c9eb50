"""What a workload is: the same network for PyTorch and for JAX and Keras, its batch and its optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

CLASSES = 10
LEARNING_RATE = 1e-3
MOMENTUM = 0.9  # of "sgd"


@dataclasses.dataclass(frozen=True)
class Workload:
    """A classifier into `CLASSES` classes, trained with cross-entropy by "adam" or "sgd" (with momentum)."""

    name: str
    build: Callable[[], Any]  # the PyTorch module
    forward: Callable[[Any, Any], Any]  # (layers, x) -> logits, with the weights under PyTorch's names
    shape: tuple[int, ...]  # of a batch
    vocabulary: int = 0  # the batch is tokens below it; 0: floats
    optimizer: str = "adam"

    def batches(self, count: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the batches to cycle through; many, as one repeated batch drives the loss to 0 and into denormals."""
        rng = np.random.default_rng(0)
        return [(self._inputs(rng), rng.integers(0, CLASSES, self.shape[0])) for _ in range(count)]

    def _inputs(self, rng: np.random.Generator) -> np.ndarray:
        if self.vocabulary:
            return rng.integers(0, self.vocabulary, self.shape)
        return rng.standard_normal(self.shape).astype(np.float32)
