"""The arithmetic of Resize in numpy, for the backends without a kernel of their own.

Resize is a linear map along each axis by itself, so a matrix for each axis describes it. Where the standard leaves a
choice or onnx's evaluator differs, this follows the runtimes that train: ONNX Runtime and PyTorch. Both align the
corners of the new image as it is, after its size was rounded down, and compute coordinates with 32 bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Interpolation:
    """How Resize finds a new sample: its attributes, under the standard's names."""

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    antialias: int = 0
    exclude_outside: int = 0

    @property
    def crops(self) -> bool:
        """Whether the new image shows a box of the old one, which may reach outside."""
        return self.coordinate_transformation_mode == "tf_crop_and_resize"

    def matrix(self, size: int, new: int, scale: float, box: tuple[float, float] = (0.0, 1.0)) -> np.ndarray:
        """Return the weights [new, size] by which an axis of `size` samples becomes one of `new`.

        A row of NaN is a sample outside of the image, which only a crop distinguishes.
        """
        matrix = np.zeros((new, size))
        if self.mode == "nearest":
            position = self._positions(np.arange(new, dtype=np.float32), size, new, np.float32(scale), box)
            matrix[
                np.arange(new), np.clip(self._nearest(position.astype(np.float64)), 0, size - 1).astype(np.int64)
            ] = 1.0
        else:
            position = self._positions(np.arange(new, dtype=np.float64), size, new, scale, box)
            self._add_neighbours(matrix, position, scale)
        if self.crops:
            matrix[(position < 0) | (position > size - 1)] = np.nan
        return matrix

    def _positions(
        self, x: np.ndarray, size: int, new: int, scale: float | np.float32, box: tuple[float, float]
    ) -> np.ndarray:
        """Return where the new samples `x` lie on the old axis, in the type of `x`."""
        mode = self.coordinate_transformation_mode
        if mode == "align_corners":
            return x * (size - 1) / max(new - 1, 1)
        if mode == "asymmetric":
            return x / scale
        if mode == "tf_crop_and_resize":
            start, end = (x.dtype.type(corner) for corner in box)
            if new == 1:
                return np.full_like(x, (start + end) * (size - 1) / 2)
            return np.asarray(start * (size - 1) + x * (end - start) * (size - 1) / (new - 1))
        if mode == "pytorch_half_pixel" and new == 1:
            return np.zeros_like(x)
        centre = (x + 0.5) / scale
        if mode == "half_pixel_symmetric":
            centre = centre + size / 2 * (1 - new / (scale * size))
        return np.asarray(centre - 0.5)

    def _nearest(self, position: np.ndarray) -> np.ndarray:
        if self.nearest_mode == "floor":
            return np.asarray(np.floor(position))
        if self.nearest_mode == "ceil":
            return np.asarray(np.ceil(position))
        upwards = self.nearest_mode == "round_prefer_ceil"
        return np.asarray(np.floor(position + 0.5) if upwards else np.ceil(position - 0.5))

    def _add_neighbours(self, matrix: np.ndarray, position: np.ndarray, scale: float) -> None:
        """Add the weights of the neighbours of each position to its row."""
        new, size = matrix.shape
        reach = 1 if self.mode == "linear" else 2
        stretch = min(scale, 1.0) if self.antialias else 1.0
        width = math.ceil(reach / stretch) + (stretch != 1.0)
        base = np.floor(position).astype(np.int64)
        total = np.zeros(new)
        for offset in range(1 - width, width + 1):
            column = base + offset
            weight = self._kernel((column - position) * stretch)
            if self.exclude_outside:
                weight = np.where((column >= 0) & (column < size), weight, 0.0)
            np.add.at(matrix, (np.arange(new), np.clip(column, 0, size - 1)), weight)
            total += weight
        if self.exclude_outside or stretch != 1.0:
            matrix /= np.where(total == 0, 1.0, total)[:, None]

    def _kernel(self, x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        if self.mode == "linear":
            return np.asarray(np.maximum(1 - x, 0))
        a = self.cubic_coeff_a
        inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
        outer = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))


def sizes_by_scales(old: Sequence[int], scales: Sequence[float]) -> list[int]:
    """Return the sizes of the new image, rounded down: with 32 bits, 0.7 times 10 is 7."""
    return [n if f == 1.0 else math.floor(np.float32(f) * np.float32(n)) for n, f in zip(old, scales, strict=True)]


def scales_by_sizes(old: Sequence[int], sizes: Sequence[int], policy: str) -> tuple[list[int], list[float]]:
    """Return the sizes and scales of the new image; a policy other than "stretch" keeps the ratio of the sizes."""
    scales = [b / a if a != b else 1.0 for a, b in zip(old, sizes, strict=True)]
    if policy == "stretch":
        return list(sizes), scales
    one = (min if policy == "not_larger" else max)(scales)
    return [math.floor(one * n + 0.5) for n in old], [one] * len(scales)
