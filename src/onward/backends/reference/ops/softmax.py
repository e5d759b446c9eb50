"""Corrected LogSoftmax."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """Return x - log(sum e^x) along `axis` without overflow or underflow."""
    if x.size == 0:
        return x
    shifted = x - x.max(axis=axis, keepdims=True)
    out: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return out


class LogSoftmax(OpRun):
    """Upstream takes the logarithm of the softmax: -inf, with a warning, where the softmax underflows."""

    def _run(self, x: np.ndarray, axis: int = -1) -> tuple[np.ndarray]:
        return (log_softmax(x, axis).astype(x.dtype),)


OPERATORS: list[type[OpRun]] = [LogSoftmax]
