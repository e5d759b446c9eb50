"""Corrected OneHot."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


class OneHot(OpRun):
    """OneHot chooses between its two values; onnx 1.23 multiplies (inf gives NaN) and refuses a depth of rank 1."""

    op_domain = ""

    def _run(self, indices: np.ndarray, depth: np.ndarray, values: np.ndarray, axis: int = -1) -> tuple[np.ndarray]:
        count = int(np.asarray(depth).reshape(-1)[0])
        index = np.asarray(indices).astype(np.int64)
        index = np.where(index < 0, index + count, index)
        place = axis + index.ndim + 1 if axis < 0 else axis
        shape = [1] * (index.ndim + 1)
        shape[place] = count
        on = np.expand_dims(index, place) == np.arange(count).reshape(shape)
        return (np.where(on, values[1], values[0]).astype(values.dtype),)


OPERATORS: list[type[OpRun]] = [OneHot]
