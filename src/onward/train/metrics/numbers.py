"""Metrics of regression."""

from __future__ import annotations

import numpy as np

from onward.train.metrics.base import Mean, Metric, arrays, mismatch


def _pair(metric: str, output: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return output and target as (rows, numbers) in float64."""
    output, target = arrays(metric, output, target)
    if output.size != target.size or output.shape[:1] != target.shape[:1]:
        raise mismatch(metric, output, target, "output and target of the same shape")
    rows = len(output) if output.ndim else 1
    width = output.size // rows if rows else 1
    return output.astype(np.float64).reshape(rows, width), target.astype(np.float64).reshape(rows, width)


class MAE(Mean):
    """The mean absolute error over all numbers."""

    name = "mae"
    larger_is_better = False

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        a, b = _pair(self.name, output, target)
        self._add(np.abs(a - b))


class RMSE(Mean):
    """The square root of the mean squared error over all numbers."""

    name = "rmse"
    larger_is_better = False

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        a, b = _pair(self.name, output, target)
        self._add(np.square(a - b))

    def compute(self) -> float:
        return float(np.sqrt(super().compute()))


class R2(Metric):
    """The share of the target's variance that is explained, per output number, averaged over them."""

    name = "r2"

    def reset(self) -> None:
        self._error, self._mean, self._spread = np.zeros(0), np.zeros(0), np.zeros(0)
        self._count = np.int64(0)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        a, b = _pair(self.name, output, target)
        n = len(b)
        if not n:
            return
        mean, spread, error = b.mean(axis=0), np.square(b - b.mean(axis=0)).sum(axis=0), np.square(a - b).sum(axis=0)
        if not self._count:
            self._error, self._mean, self._spread, self._count = error, mean, spread, np.int64(n)
            return
        total = self._count + n  # Chan's way of joining two variances
        delta = mean - self._mean
        self._spread = self._spread + spread + delta**2 * (self._count * n / total)
        self._mean = self._mean + delta * (n / total)
        self._error = self._error + error
        self._count = np.int64(total)

    def compute(self) -> float:
        if self._count < 2:
            return float("nan")
        flat = self._spread == 0
        value = 1.0 - self._error / np.where(flat, 1.0, self._spread)
        return float(np.where(flat, np.where(self._error == 0, 1.0, 0.0), value).mean())
