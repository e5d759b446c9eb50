"""GridSample and RoiAlign: where an image is read, and by which weights.

Both are sums of pixels times weights, so the arithmetic is the same everywhere. A backend supplies a few functions on
its tensors. Points and weights have gradients; which pixels are read has none.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.backends.graph.framework import Framework
from onward.backends.graph.registry import Attributes

Taps = list[tuple[Any, Any]]  # the pixels along one axis, and their weights


class _Sampling(abc.ABC):
    """What both operators need of a framework."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework

    @abc.abstractmethod
    def cast(self, x: Any, dtype: Any) -> Any:
        """Return `x` in another type: that of a tensor, or one by its name."""

    @abc.abstractmethod
    def floor(self, x: Any) -> Any:
        """Return `x`, rounded down, without a gradient."""

    @abc.abstractmethod
    def where(self, condition: Any, number: float, x: Any) -> Any:
        """Return a number where the condition holds, else `x`."""

    def clamp(self, x: Any, low: float, high: float) -> Any:
        """Return `x`, limited; the gradient outside of the limits is zero, and on them that of `x`."""
        return self.where(x < low, low, self.where(x > high, high, x))


class GridSample(_Sampling):
    """GridSample on a framework; `grid_sample` is the handler."""

    @abc.abstractmethod
    def round(self, x: Any) -> Any:
        """Return `x`, rounded to the nearest integer, of two the even one, without a gradient."""

    @abc.abstractmethod
    def pixels(self, x: Any, places: Sequence[Any]) -> Any:
        """Return [batch, channels, ...] of an image [batch, channels, *spatial]; `places` has [batch, ...] per axis."""

    def grid_sample(self, attributes: Attributes, x: Any, grid: Any) -> Any:
        """Read `x` at the points of `grid`: each axis from -1 to 1, the last axis of the image first."""
        if "float" not in str(x.dtype):
            wide = self.grid_sample(attributes, self.cast(x, "float64"), grid)
            return self.cast(self.round(wide), x.dtype)
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attributes["mode"], attributes["mode"])
        padding, corners = attributes.get("padding_mode", "zeros"), bool(attributes.get("align_corners", 0))
        sizes, grid = self.framework.shape(x)[2:], self.cast(grid, x.dtype)
        if mode == "cubic" and len(sizes) != 2:
            raise ValueError("cubic interpolation is for images with two spatial axes")
        points = []
        for axis, size in enumerate(sizes):
            point = grid[..., len(sizes) - 1 - axis]
            point = (point + 1) / 2 * (size - 1) if corners else ((point + 1) * size - 1) / 2
            points.append(point if mode == "cubic" else self._inside(point, size, padding, corners))
        taps = {"nearest": self._nearest, "linear": self._linear, "cubic": self._cubic}[mode]
        result: Any = 0
        for chosen in itertools.product(*(taps(p) for p in points)):
            places, weight = [], math.prod(share for _, share in chosen)
            for (place, _), size in zip(chosen, sizes, strict=True):
                if mode == "cubic":
                    place = self._inside(place, size, padding, corners)
                weight = self.where((place < 0) | (place > size - 1), 0.0, weight)
                places.append(self.cast(self.clamp(place, 0, size - 1), "int64"))
            result = result + self.pixels(x, places) * weight[:, None]
        return self.cast(result, x.dtype)

    def _inside(self, point: Any, size: int, padding: str, corners: bool) -> Any:
        """Return where a point outside of the image is read."""
        if padding == "border":
            return self.clamp(point, 0, size - 1)
        if padding != "reflection":
            return point
        low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
        if not span:
            return point * 0
        away = abs(point - low)
        turns = self.floor(away / span)
        rest = away - turns * span
        odd = turns % 2  # 0 or 1
        return self.clamp(low + (1 - odd) * rest + odd * (span - rest), 0, size - 1)

    def _nearest(self, point: Any) -> Taps:
        place = self.round(point)
        return [(place, place * 0 + 1)]

    def _linear(self, point: Any) -> Taps:
        low = self.floor(point)
        return [(low, 1 - (point - low)), (low + 1, point - low)]

    def _cubic(self, point: Any) -> Taps:
        a, low = -0.75, self.floor(point)
        taps = []
        for offset in (-1, 0, 1, 2):
            t = abs(point - low - offset)
            near = ((a + 2) * t - (a + 3)) * t * t + 1
            far = ((t - 5) * t + 8) * t * a - 4 * a
            taps.append((low + offset, near if offset in (0, 1) else far))
        return taps


class RoiAlign(_Sampling):
    """RoiAlign on a framework; `roi_align` is the handler."""

    @abc.abstractmethod
    def take(self, x: Any, index: Any, axis: int) -> Any:
        """Return the slices of `x` along an axis, as the integers of `index` say."""

    @abc.abstractmethod
    def pool(self, x: Any, axes: tuple[int, ...], average: bool) -> Any:
        """Return the mean or the largest number over some axes."""

    @abc.abstractmethod
    def reshape(self, x: Any, sizes: Sequence[int]) -> Any:
        """Return `x` with other sizes."""

    @abc.abstractmethod
    def zeros(self, sizes: Sequence[Any], like: Any) -> Any:
        """Return zeros of the type of `like`."""

    def roi_align(self, attributes: Attributes, x: Any, rois: Any, batch: Any) -> Any:
        """Return each region as an image of one size; a pixel is the mean or the maximum of a few points of it."""
        height, width = attributes["output_height"], attributes["output_width"]
        ratio, scale = attributes.get("sampling_ratio", 0), attributes.get("spatial_scale", 1.0)
        mode, average = attributes.get("coordinate_transformation_mode", "half_pixel"), attributes.get("mode", "avg")
        shifted = attributes.opset >= 16 and mode == "half_pixel"
        results = []
        for index in range(int(self.framework.number([self.framework.shape(rois)[0]]))):
            corners = rois[index] * scale - (0.5 if shifted else 0.0)
            x1, y1, x2, y2 = (corners[k] for k in range(4))
            w, h = x2 - x1, y2 - y1
            if not shifted:
                w, h = (self.where(size < 1, 1.0, size) for size in (w, h))
            down, across = (self._count(size, into, ratio) for size, into in ((h, height), (w, width)))
            steps_y, steps_x = (self._steps(n, x) for n in (height * down, width * across))
            image = self.take(x, batch[index], 0)
            parts = self._bilinear(image, y1 + steps_y * h, x1 + steps_x * w)
            sizes = [-1, height, down, width, across]
            if average == "avg":
                results.append(self.pool(self.reshape(sum(parts[1:], parts[0]), sizes), (2, 4), True))
            else:
                best = self.pool(self.framework.stack(parts, 0), (0,), False)
                results.append(self.pool(self.reshape(best, sizes), (2, 4), False))
        if not results:
            return self.zeros([0, self.framework.shape(x)[1], height, width], x)
        return self.framework.stack(results, 0)

    def _count(self, size: Any, into: int, ratio: int) -> int:
        """Return how many points a pixel has along one axis."""
        return ratio if ratio > 0 else max(math.ceil(float(self.framework.number(size)) / into), 1)

    def _steps(self, count: int, like: Any) -> Any:
        """Return the places of the points along a region, from 0 to 1."""
        return self.cast(self.framework.to_tensor((np.arange(count) + 0.5) / count), like.dtype)

    def _bilinear(self, image: Any, y: Any, x: Any) -> list[Any]:
        """Return the four corners around each point of a grid, times their weights."""
        h, w = self.framework.shape(image)[1:]
        outside = ((y < -1) | (y > h))[:, None] | ((x < -1) | (x > w))
        y, x = self.clamp(y, 0, h - 1), self.clamp(x, 0, w - 1)
        top, left = self.floor(y), self.floor(x)
        ly, lx = (y - top)[:, None], x - left
        rows = [self.cast(v, "int64") for v in (top, self.clamp(top + 1, 0, h - 1))]
        columns = [self.cast(v, "int64") for v in (left, self.clamp(left + 1, 0, w - 1))]
        weights = [(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx]
        corners = [self.take(self.take(image, r, 1), c, 2) for r in rows for c in columns]
        return [c * self.where(outside, 0.0, k) for c, k in zip(corners, weights, strict=True)]
