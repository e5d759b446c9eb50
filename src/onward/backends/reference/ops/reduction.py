"""Corrected reductions."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


class ReduceLogSumExp(OpRun):
    """Upstream gives NaN where the maximum is infinite, with warnings."""

    def _run(
        self, data: np.ndarray, axes: np.ndarray | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> tuple[np.ndarray]:
        if axes is not None and len(axes):
            over: tuple[int, ...] | None = tuple(int(a) for a in axes)
        else:
            over = () if noop_with_empty_axes else None
        top = data.max(axis=over, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(top), top, 0)
        with np.errstate(divide="ignore", over="ignore"):
            out = np.log(np.exp(data - shift).sum(axis=over, keepdims=True)) + shift
        if not keepdims and over != ():
            out = out.squeeze(over)
        return (np.asarray(out, dtype=data.dtype),)


class ReduceSumSquare(OpRun):
    """Upstream gives int64 for the sum of squares of int32."""

    def _run(
        self, data: np.ndarray, axes: np.ndarray | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> tuple[np.ndarray]:
        if axes is not None and np.size(axes):
            over: tuple[int, ...] | None = tuple(int(a) for a in np.ravel(axes))
        else:
            over = () if noop_with_empty_axes else None
        found = np.square(data).sum(axis=over, keepdims=bool(keepdims), dtype=data.dtype)
        return (np.asarray(found, dtype=data.dtype),)


OPERATORS: list[type[OpRun]] = [ReduceLogSumExp, ReduceSumSquare]
