"""Corrected GatherElements and Scatter."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


class GatherElements(OpRun):
    """GatherElements with a negative axis; onnx 1.23 then compares the wrong dimensions and fails."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        place: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
        place[axis] = indices
        return (data[tuple(place)],)


class Scatter(OpRun):
    """Scatter of opset 9 and 10, which onnx 1.23 does not have."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        output = data.copy()
        place: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
        place[axis] = indices
        output[tuple(place)] = updates
        return (output,)


OPERATORS: list[type[OpRun]] = [GatherElements, Scatter]
