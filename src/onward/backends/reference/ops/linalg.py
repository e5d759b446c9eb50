"""Corrected linear algebra."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from onward.backends.reference.narrow import BFLOAT16, widened


@widened(BFLOAT16, np.float16)
class Det(OpRun):
    """Upstream has no 16-bit numbers, because LAPACK has none."""

    def _run(self, X: np.ndarray) -> tuple[np.ndarray]:
        return (np.asarray(np.linalg.det(X), dtype=X.dtype),)


OPERATORS: list[type[OpRun]] = [Det]
