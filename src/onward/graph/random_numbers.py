"""Random numbers that do not depend on the machine or the version of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return float64 numbers in [0, 1), by SplitMix64 over a counter; each `stream` gives other numbers.

    >>> uniform(0, 0, (2,)).round(6).tolist() == uniform(0, 0, (2,)).round(6).tolist()
    True
    """
    count = int(np.prod(shape, dtype=np.int64))
    with np.errstate(over="ignore"):
        start = _mix(np.uint64(seed & (2**64 - 1)) * _GOLDEN + np.uint64(stream))
        state = start + (np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
        bits = _mix(state)
    numbers: np.ndarray = ((bits >> np.uint64(11)).astype(np.float64) / float(1 << 53)).reshape(shape)
    return numbers


def normal(seed: int, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return float64 numbers of the standard normal distribution (Box and Muller)."""
    first, second = uniform(seed, 2 * stream, shape), uniform(seed, 2 * stream + 1, shape)
    numbers: np.ndarray = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second)
    return numbers


def _mix(bits: Any) -> Any:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
