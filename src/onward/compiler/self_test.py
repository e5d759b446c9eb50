"""The self-test of a program: one batch, and what one step of each training entry makes of it.

A runtime that gets an operator wrong in silence is found before it trains: it runs the step, and the change of every
state tensor is compared with that on ONNX Runtime's CPU kernels, by two checksums (docs/program_format.md).
`make_self_test` makes one; `backends/self_test.py` runs it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

FILE = "self_test.safetensors"
_CHUNK = 1 << 20  # elements at a time


@dataclasses.dataclass(frozen=True)
class Checksum:
    """The change of one state tensor: Σ xᵢ cos i and Σ |xᵢ|, each right within `tolerance`."""

    values: tuple[float, float]
    tolerance: float


@dataclasses.dataclass(frozen=True)
class Expected:
    """What one step of a training entry gives."""

    loss: float
    loss_tolerance: float
    state: Mapping[str, Checksum]


@dataclasses.dataclass(frozen=True)
class Deviation:
    """A value that is not what it should be: the loss, or a state tensor (`state` is its name)."""

    entry: str
    state: str | None
    found: tuple[float, ...]
    needed: tuple[float, ...]
    tolerance: float


@dataclasses.dataclass(frozen=True)
class SelfTest:
    """One batch for all training entries, and what each of them gives from the program's stored state."""

    batch: Mapping[str, np.ndarray]
    entries: Mapping[str, Expected]

    def deviations(
        self, entry: str, loss: float, old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]
    ) -> list[Deviation]:
        """Return what deviates after one step of `entry`: the loss, then the state tensors in order."""
        expected = self.entries[entry]
        found: list[Deviation] = []
        if not _near((loss,), (expected.loss,), expected.loss_tolerance):
            found.append(Deviation(entry, None, (loss,), (expected.loss,), expected.loss_tolerance))
        for name, needed in expected.state.items():
            sums = checksum(old[name], new[name])
            if not _near(sums, needed.values, needed.tolerance):
                found.append(Deviation(entry, name, sums, needed.values, needed.tolerance))
        return found

    def described(self) -> dict[str, Any]:
        """Return the entries as the manifest has them."""
        return {
            name: {
                "loss": e.loss,
                "loss_tolerance": e.loss_tolerance,
                "state": {n: {"checksum": list(c.values), "tolerance": c.tolerance} for n, c in e.state.items()},
            }
            for name, e in self.entries.items()
        }

    @classmethod
    def read(cls, batch: Mapping[str, np.ndarray], entries: Mapping[str, Any]) -> SelfTest:
        """Return the test that `described` describes."""
        return cls(
            batch,
            {
                name: Expected(
                    float(e["loss"]),
                    float(e["loss_tolerance"]),
                    {
                        n: Checksum((float(c["checksum"][0]), float(c["checksum"][1])), float(c["tolerance"]))
                        for n, c in e["state"].items()
                    },
                )
                for name, e in entries.items()
            },
        )


def checksum(old: np.ndarray, new: np.ndarray) -> tuple[float, float]:
    """Return Σ xᵢ cos i and Σ |xᵢ| of the change x = new − old, flattened, in float64.

    >>> [round(value, 6) for value in checksum(np.array([1, 1]), np.array([2, -1]))]
    [-0.080605, 3.0]
    """
    before, after = old.reshape(-1), new.reshape(-1)
    weighted = size = 0.0
    with np.errstate(all="ignore"):  # what is not finite deviates
        for first in range(0, after.size, _CHUNK):
            part = slice(first, first + _CHUNK)
            change = after[part].astype(np.float64) - before[part].astype(np.float64)
            cosines = _cosines(_CHUNK)[: change.size] if not first else np.cos(np.arange(first, first + change.size))
            weighted += float(change @ cosines)
            size += float(np.abs(change).sum())
    return weighted, size


@functools.cache
def _cosines(length: int) -> np.ndarray:
    return np.cos(np.arange(length, dtype=np.float64))


def _near(found: tuple[float, ...], needed: tuple[float, ...], tolerance: float) -> bool:
    return all(math.isfinite(f) and abs(f - n) <= tolerance for f, n in zip(found, needed, strict=True))
