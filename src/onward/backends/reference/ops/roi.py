"""MaxRoiPool."""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun


class MaxRoiPool(OpRun):
    """MaxRoiPool, which onnx 1.23 does not have."""

    op_domain = ""

    def _run(
        self, X: np.ndarray, rois: np.ndarray, pooled_shape: list[int] | None = None, spatial_scale: float = 1.0
    ) -> tuple[np.ndarray]:
        assert pooled_shape is not None
        rows, columns = pooled_shape
        Y = np.zeros((len(rois), X.shape[1], rows, columns), X.dtype)
        for r, (image, *corners) in enumerate(rois):
            x1, y1, x2, y2 = (math.floor(float(c) * spatial_scale + 0.5) for c in corners)
            high, wide = max(y2 - y1 + 1, 1) / rows, max(x2 - x1 + 1, 1) / columns
            for i, j in np.ndindex(rows, columns):
                ys = slice(max(math.floor(i * high) + y1, 0), max(math.ceil((i + 1) * high) + y1, 0))
                xs = slice(max(math.floor(j * wide) + x1, 0), max(math.ceil((j + 1) * wide) + x1, 0))
                part = X[int(image), :, ys, xs]
                if part.size:
                    Y[r, :, i, j] = part.max(axis=(1, 2))
        return (Y,)


OPERATORS: list[type[OpRun]] = [MaxRoiPool]
