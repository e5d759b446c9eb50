"""Operators without a kernel in the frameworks, computed with numpy: the sizes of their results depend on data."""

from __future__ import annotations

import math

import numpy as np

from onward.backends.graph.registry import Attributes


def unique(attributes: Attributes, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the distinct values, where each comes first, which one each element is, and how often each occurs."""
    axis = attributes.get("axis") if "axis" in attributes else None
    narrow = x.dtype
    wide = x.astype(np.float32) if narrow.kind == "V" or narrow.name == "bfloat16" else x  # numpy cannot sort it
    values, first, inverse, counts = np.unique(
        wide, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not attributes.get("sorted", 1):
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        first, inverse, counts = first[order], np.argsort(order)[inverse], counts[order]
    return values.astype(narrow), first, inverse, counts


def non_max_suppression(
    attributes: Attributes, boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float, least: float | None
) -> np.ndarray:
    """Return [chosen, 3]: image, class and box, best first, without boxes that overlap a better one."""
    a, b = boxes[..., :2], boxes[..., 2:]
    if attributes.get("center_point_box", 0):
        a, b = a[..., ::-1] - b[..., ::-1] / 2, a[..., ::-1] + b[..., ::-1] / 2
    low, high = np.minimum(a, b), np.maximum(a, b)
    area = (high - low).prod(-1)
    chosen = []
    for n, c in np.ndindex(scores.shape[:2]):
        order = np.argsort(-scores[n, c], kind="stable")
        if least is not None:
            order = order[scores[n, c][order] > least]
        for _ in range(min(most, len(order))):
            if not len(order):
                break
            i, order = order[0], order[1:]
            chosen.append((n, c, i))
            common = np.minimum(high[n, i], high[n, order]) - np.maximum(low[n, i], low[n, order])
            size = np.maximum(common, 0).prod(-1)
            order = order[size <= overlap * (area[n, i] + area[n, order] - size)]
    return np.array(chosen, np.int64).reshape(-1, 3)


def mel_weights(bins: int, size: int, rate: int, lower: float, upper: float) -> np.ndarray:
    """Return triangular filters, evenly spaced on the mel scale, between whole bins as the standard defines."""
    low, high = (2595.0 * math.log10(1.0 + v / 700.0) for v in (lower, upper))
    mels = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    hertz = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    feet = np.floor((size + 1) * hertz / rate).astype(np.int64)[None]
    before, peak, after = feet[:, :-2], feet[:, 1:-1], feet[:, 2:]
    place = np.arange(size // 2 + 1)[:, None]
    rising = (place - before) / np.maximum(peak - before, 1)
    falling = (after - place) / np.maximum(after - peak, 1)
    weights = np.where((place >= before) & (place <= peak), rising, 0.0)
    weights = np.where((place == peak) & (before == peak), 1.0, weights)
    return np.where((place >= peak) & (place < after), falling, weights)


def affine_points(sizes: list[int], corners: bool) -> np.ndarray:
    """Return each point of an image as AffineGrid multiplies it: its coordinates, the last axis first, and a one.

    >>> affine_points([1, 2], corners=True).tolist()
    [[[-1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]]
    """
    lines = [np.linspace(-1, 1, n) * (1 if corners else (n - 1) / n) if n > 1 else np.zeros(n) for n in sizes]
    return np.stack([*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(sizes)], -1)
