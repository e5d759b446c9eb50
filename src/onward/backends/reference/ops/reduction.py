"""Corrected reductions."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


class _Reduction(OpRun):
    """A reduction whose result has the type of the data."""

    def _run(
        self, data: np.ndarray, axes: np.ndarray | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> tuple[np.ndarray]:
        if axes is not None and len(axes):
            over: tuple[int, ...] = tuple(int(a) % data.ndim for a in axes)
        else:
            over = () if noop_with_empty_axes else tuple(range(data.ndim))
        out = self._reduce(data, over)
        return (np.asarray(out if keepdims else out.squeeze(over), dtype=data.dtype),)

    def _reduce(self, data: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Return the data reduced over the axes, which are kept."""
        raise NotImplementedError


def _as_float(data: np.ndarray) -> np.ndarray:
    return data.astype(np.float64) if data.dtype.kind in "iu" else data


class ReduceSumSquare(_Reduction):
    """Upstream returns 64 bits for integers of 32."""

    def _reduce(self, data: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.asarray(np.square(data).sum(axis=axes, keepdims=True))


class ReduceLogSum(_Reduction):
    """Upstream fails for integers."""

    def _reduce(self, data: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(_as_float(data).sum(axis=axes, keepdims=True)))


class ReduceLogSumExp(_Reduction):
    """Upstream gives NaN where the maximum is infinite, with warnings."""

    def _reduce(self, data: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        wide = _as_float(data)
        top = wide.max(axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(top), top, 0)
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(np.log(np.exp(wide - shift).sum(axis=axes, keepdims=True)) + shift)


OPERATORS: list[type[OpRun]] = [ReduceLogSum, ReduceLogSumExp, ReduceSumSquare]
