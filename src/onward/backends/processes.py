"""Number and rank of the training processes, from the environment of torchrun."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def world_size() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """Return the number of this process, from 0; process 0 writes files and prints."""
    return int(os.environ.get("RANK", "0")) if world_size() > 1 else 0


def share(count: int, part: int, parts: int) -> slice:
    """Return the slice of `count` items for one of several parts; their sizes differ by one at most.

    >>> [share(7, part, 3) for part in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
    """
    return slice(count * part // parts, count * (part + 1) // parts)


class Rows(np.ndarray):
    """The rows of this process, of an array with `total` rows; the other processes have the rest."""

    total = 0  # results of computations with rows are ordinary arrays

    @classmethod
    def of(cls, array: np.ndarray, total: int) -> Rows:
        rows: Any = array.view(cls)
        rows.total = total
        return rows  # type: ignore[no-any-return]  # numpy does not know the class of a view
