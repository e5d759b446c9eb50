"""Upsample of opset 9."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


class Upsample(OpRun):
    """Upsample of opset 9, which onnx 1.23 does not have: coordinates are divided by the scale."""

    op_domain = ""

    def _run(self, X: np.ndarray, scales: np.ndarray, mode: str = "nearest") -> tuple[np.ndarray]:
        result = X
        for axis, scale in enumerate(scales):
            size = X.shape[axis]
            source = np.arange(int(np.floor(size * scale))) / float(scale)
            low = np.clip(np.floor(source).astype(np.int64), 0, size - 1)
            if mode == "nearest":
                result = np.take(result, low, axis=axis)
                continue
            high = np.minimum(low + 1, size - 1)
            ratio = (source - low).reshape([-1] + [1] * (X.ndim - axis - 1))
            result = np.take(result, low, axis=axis) * (1 - ratio) + np.take(result, high, axis=axis) * ratio
        return (result.astype(X.dtype),)


OPERATORS: list[type[OpRun]] = [Upsample]
