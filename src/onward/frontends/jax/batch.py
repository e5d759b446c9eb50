"""The example batch: its free size, and a batch of another size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from onward.frontends.jaxpr import versions

NAME = "batch"
LARGE = 8
"""From here on the other batch is a smaller one, which takes less time."""


def batch_size(batch: Any) -> int | None:
    """Return the first dimension that most arrays have; of equally many, that of the first array."""
    sizes = [int(np.shape(leaf)[0]) for leaf in jax.tree.leaves(batch) if np.ndim(leaf)]
    return max(sizes, key=sizes.count) if sizes else None


def struct_of(size: int | None, free: bool) -> Callable[[Any], Any]:
    """Return how an array of the batch is traced: with `free`, a first dimension of the batch's size is a symbol."""
    symbol = versions.free_size(NAME) if free else None

    def struct(array: Any) -> Any:
        shape = tuple(array.shape)
        if free and shape and shape[0] == size:
            shape = (symbol, *shape[1:])
        return jax.ShapeDtypeStruct(shape, array.dtype)

    return struct


def another_batch(batch: Any, size: int) -> Any:
    """Return a batch of another size, made of the same samples: one sample more, or of a large one about half.

    >>> [len(another_batch(np.zeros(size), size)) for size in (1, 3, 7, 8, 32)]
    [2, 4, 8, 5, 17]
    """
    other = size + 1 if size < LARGE else size // 2 + 1

    def resized(array: Any) -> Any:
        if not np.ndim(array) or np.shape(array)[0] != size:
            return array
        numbers = np.asarray(array)  # by numpy, because JAX would compile for each shape
        return jax.numpy.asarray(np.concatenate([numbers, numbers[::-1]])[:other])

    return jax.tree.map(resized, batch)
