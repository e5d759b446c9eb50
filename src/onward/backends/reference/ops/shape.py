"""Corrected Flatten."""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun


class Flatten(OpRun):
    """Flatten of an empty tensor; onnx 1.23 lets numpy infer a dimension, which fails."""

    op_domain = ""

    def _run(self, x: np.ndarray, axis: int = 1) -> tuple[np.ndarray]:
        cut = axis + x.ndim if axis < 0 else axis
        return (x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:])),)


OPERATORS: list[type[OpRun]] = [Flatten]
