"""What Resize and Upsample do to each axis, from their attributes and inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from onward.backends.graph.framework import Framework
from onward.backends.graph.registry import Attributes
from onward.backends.resampling import Interpolation, scales_by_sizes, sizes_by_scales

_NAMES = [field.name for field in dataclasses.fields(Interpolation)]


class NewAxis(NamedTuple):
    """An axis that becomes `weights @ axis`; samples that are `outside` of the image get the node's fill value."""

    axis: int
    weights: np.ndarray  # [new, old]
    outside: np.ndarray  # [new], booleans


def resized(
    framework: Framework, attributes: Attributes, shape: Sequence[int], roi: Any, scales: Any, sizes: Any
) -> Iterator[NewAxis]:
    """Yield each axis that Resize changes."""
    rank = len(shape)
    axes = attributes.get("axes")
    axes = list(range(rank)) if axes is None else [a % rank for a in axes]
    old = [shape[a] for a in axes]
    factors = framework.floats(scales) if scales is not None else []
    if factors:
        new = sizes_by_scales(old, factors)
    else:
        policy = attributes.get("keep_aspect_ratio_policy", "stretch")
        new, factors = scales_by_sizes(old, framework.ints(sizes), policy)
    how = Interpolation(**{name: attributes[name] for name in _NAMES if attributes[name] is not None})
    corners = framework.floats(roi) if how.crops and roi is not None else [0.0] * len(axes) + [1.0] * len(axes)
    boxes = list(zip(corners[: len(axes)], corners[len(axes) :], strict=True))
    return _changed(shape, how, axes, new, factors, boxes)


def upsampled(framework: Framework, attributes: Attributes, shape: Sequence[int], scales: Any) -> Iterator[NewAxis]:
    """Yield each axis that Upsample changes."""
    factors = framework.floats(attributes["scales"] if scales is None else scales)
    how = Interpolation(attributes["mode"], "asymmetric", "floor")
    new, boxes = sizes_by_scales(list(shape), factors), [(0.0, 1.0)] * len(shape)
    return _changed(shape, how, list(range(len(shape))), new, factors, boxes)


def _changed(
    shape: Sequence[int],
    how: Interpolation,
    axes: list[int],
    new: list[int],
    factors: list[float],
    boxes: list[tuple[float, float]],
) -> Iterator[NewAxis]:
    for axis, size, factor, box in zip(axes, new, factors, boxes, strict=True):
        if factor != 1.0 or how.crops:
            matrix = how.matrix(int(shape[axis]), size, factor, box)
            yield NewAxis(axis, np.nan_to_num(matrix), np.isnan(matrix).any(1))
