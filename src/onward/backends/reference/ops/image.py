"""Corrected GridSample and AffineGrid."""

from __future__ import annotations

import itertools
import math

import numpy as np
from onnx.reference.op_run import OpRun


def _cubic(t: np.ndarray) -> list[np.ndarray]:
    a = -0.75

    def near(x: np.ndarray) -> np.ndarray:
        return np.asarray(((a + 2) * x - (a + 3)) * x * x + 1)

    def far(x: np.ndarray) -> np.ndarray:
        return np.asarray(((a * x - 5 * a) * x + 8 * a) * x - 4 * a)

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


class GridSample(OpRun):
    """GridSample in the type of its input; onnx 1.23 has float32 coordinates and lacks the modes of opset 16.

    With a cubic kernel and the padding "border", onnx clamps the coordinate; ONNX Runtime and PyTorch, and this, clamp
    the neighbours.
    """

    op_domain = ""

    def _run(
        self,
        X: np.ndarray,
        grid: np.ndarray,
        align_corners: int = 0,
        mode: str = "linear",
        padding_mode: str = "zeros",
    ) -> tuple[np.ndarray]:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        sizes = X.shape[2:]
        images = np.arange(X.shape[0]).reshape([-1] + [1] * (grid.ndim - 2))
        taps: list[list[tuple[np.ndarray, np.ndarray]]] = []
        for axis, size in enumerate(sizes):
            place = grid[..., len(sizes) - 1 - axis].astype(np.float64)
            place = (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2
            place = np.rint(place) if mode == "nearest" else place
            low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
            if not (mode == "cubic" and padding_mode == "border"):
                place = self._inside(place, size, low, high, padding_mode)
            base = np.floor(place)
            t = place - base
            weights = {"nearest": [np.ones_like(t)], "linear": [1 - t, t]}.get(mode) or _cubic(t)
            first = -1 if mode == "cubic" else 0
            taps.append([self._tap(base + first + k, size, low, high, padding_mode, w) for k, w in enumerate(weights)])
        total = np.zeros((X.shape[0], *grid.shape[1:-1], X.shape[1]))
        for chosen in itertools.product(*taps):
            values = np.moveaxis(X, 1, -1)[(images, *(index for index, _ in chosen))]
            total += values * math.prod(weight for _, weight in chosen)[..., None]  # type: ignore[index]  # arrays
        return (np.moveaxis(total, -1, 1).astype(X.dtype),)

    def _inside(self, place: np.ndarray, size: int, low: float, high: float, padding: str) -> np.ndarray:
        if padding == "border":
            return np.where((place < low) | (place > high), np.clip(place, 0, size - 1), place)
        if padding == "reflection":
            width = max(high - low, 1.0)
            count = np.floor((place - low) / width)
            rest = place - low - count * width
            return np.asarray(low + np.where(count % 2 == 1, width - rest, rest))
        return place

    def _tap(
        self, index: np.ndarray, size: int, low: float, high: float, padding: str, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if padding == "zeros":
            weight = np.where((index >= 0) & (index <= size - 1), weight, 0.0)
        elif padding == "reflection":
            index = self._inside(index, size, low, high, padding)
        return np.clip(index, 0, size - 1).astype(np.int64), weight


class AffineGrid(OpRun):
    """AffineGrid in the type of theta; onnx 1.23 always returns float32."""

    op_domain = ""

    def _run(self, theta: np.ndarray, size: np.ndarray, align_corners: int = 0) -> tuple[np.ndarray]:
        spatial = [int(s) for s in size[2:]]
        lines = []
        for n in spatial:
            steps = np.arange(n, dtype=np.float64)
            if align_corners:
                lines.append(steps * (2 / (n - 1)) - 1 if n > 1 else np.full(1, -1.0))
            else:
                lines.append((2 * steps + 1) / n - 1)
        points = np.stack([*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(spatial)], axis=-1)
        grid = points.reshape(-1, len(spatial) + 1) @ np.swapaxes(theta.astype(np.float64), 1, 2)
        return (grid.reshape(theta.shape[0], *spatial, len(spatial)).astype(theta.dtype),)


OPERATORS: list[type[OpRun]] = [GridSample, AffineGrid]
