"""What a metric is, and what all of them share."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.data.arrays import to_array

T120 = "T120"


class Metric(abc.ABC):
    """A number over all samples seen since `reset`."""

    name = ""
    """Its column in the logs; without one, the name of the class in small letters."""
    larger_is_better: bool | None = True
    from_logits = False
    output: str | None = None
    """The output of the model that it reads; None means the one that the loss reads, or that derives from it."""
    target: str | None = None
    """The target that it compares with; None means the one that the loss compares this output with."""

    def __init__(self, *, from_logits: bool = False) -> None:
        """Set `from_logits`. A subclass with an `__init__` of its own need not call this one."""
        self.from_logits = from_logits
        self.reset()

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all samples."""

    @abc.abstractmethod
    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        """Add one batch."""

    @abc.abstractmethod
    def compute(self) -> float:
        """Return the value over all samples so far; NaN when there is none or it is not defined."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Return what `update` has collected, for a checkpoint."""
        return {k: np.asarray(v) for k, v in vars(self).items() if k.startswith("_") and not callable(v)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what `get_state` returned."""
        for key, value in state.items():
            setattr_known(self, key, value)


def setattr_known(metric: Metric, key: str, value: np.ndarray) -> None:
    """Set a field that the metric already has; a name from a file never makes a new one."""
    if key not in vars(metric) or not key.startswith("_"):
        raise ArgumentError(Diagnostic(A101, f"metric `{metric.name}` has no field `{key}`"))
    vars(metric)[key] = np.array(value)


def mismatch(metric: str, output: np.ndarray, target: np.ndarray, needed: str) -> DataError:
    """Return the error for shapes or types that a metric cannot compare."""
    return DataError(
        Diagnostic(
            T120,
            f"metric `{metric}` cannot compare the output with the target",
            found=f"output {output.shape} {output.dtype}, target {target.shape} {target.dtype}",
            needed=needed,
        )
    )


def arrays(metric: str, output: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return both as arrays of numbers."""
    return to_array(output, f"the output for metric `{metric}`"), to_array(target, f"the target for metric `{metric}`")


class Mean(Metric):
    """The mean of one number per sample (or per element)."""

    def reset(self) -> None:
        self._sum, self._count = np.float64(0.0), np.int64(0)

    def _add(self, values: np.ndarray) -> None:
        self._sum += values.sum(dtype=np.float64)
        self._count += values.size

    def compute(self) -> float:
        return float(self._sum / self._count) if self._count else float("nan")
