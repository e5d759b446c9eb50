"""Corrected Resize, and Upsample of opset 9."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from onward.backends.resampling import Interpolation, scales_by_sizes, sizes_by_scales


class Resize(OpRun):
    """Resize as ONNX Runtime and PyTorch compute it.

    onnx 1.23 aligns corners, crops, and finds a single sample of `pytorch_half_pixel`, with the size of the new image
    before it is rounded down.
    """

    op_domain = ""

    def _run(
        self,
        X: np.ndarray,
        roi: np.ndarray | None = None,
        scales: np.ndarray | None = None,
        sizes: np.ndarray | None = None,
        axes: list[int] | None = None,
        extrapolation_value: float = 0.0,
        keep_aspect_ratio_policy: str = "stretch",
        **attributes: Any,
    ) -> tuple[np.ndarray]:
        chosen = list(range(X.ndim)) if axes is None else [a % X.ndim for a in axes]
        old = [X.shape[a] for a in chosen]
        if scales is not None and len(scales):
            factors = [float(s) for s in scales]
            new = sizes_by_scales(old, factors)
        else:
            assert sizes is not None
            new, factors = scales_by_sizes(old, [int(s) for s in sizes], keep_aspect_ratio_policy or "stretch")
        how = Interpolation(**{name: value for name, value in attributes.items() if value is not None})
        corners = np.zeros(0) if roi is None or not how.crops else np.asarray(roi, np.float64)
        boxes = corners.reshape(2, -1).T.tolist() or [[0.0, 1.0]] * len(chosen)
        return (_resample(X, how, chosen, new, factors, boxes, extrapolation_value),)


def _resample(
    X: np.ndarray,
    how: Interpolation,
    axes: list[int],
    new: list[int],
    factors: list[float],
    boxes: list[Any],
    fill: float = 0.0,
) -> np.ndarray:
    """Return `X` with a new size along each of `axes`."""
    wide = X.astype(np.float64)
    for axis, size, factor, box in zip(axes, new, factors, boxes, strict=True):
        if factor != 1.0 or how.crops:
            matrix = how.matrix(X.shape[axis], size, factor, tuple(box))
            wide = np.moveaxis(np.tensordot(wide, matrix, ([axis], [1])), -1, axis)
    if how.crops:
        wide = np.where(np.isnan(wide), fill, wide)
    return wide.astype(X.dtype) if X.dtype.kind == "f" else np.rint(wide).astype(X.dtype)


class Upsample(OpRun):
    """Upsample of opset 9, which onnx 1.23 does not have: coordinates are divided by the scale."""

    op_domain = ""

    def _run(self, X: np.ndarray, scales: np.ndarray, mode: str = "nearest") -> tuple[np.ndarray]:
        factors = [float(s) for s in scales]
        how = Interpolation(mode, "asymmetric", "floor")
        boxes = [(0.0, 1.0)] * X.ndim
        return (_resample(X, how, list(range(X.ndim)), sizes_by_scales(X.shape, factors), factors, boxes),)


OPERATORS: list[type[OpRun]] = [Resize, Upsample]
