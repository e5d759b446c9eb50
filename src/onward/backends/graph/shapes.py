"""The arithmetic of axes and sizes: which axes are reduced, how a tensor is split, sliced and padded.

Everything here is Python arithmetic on sizes, so sizes may be the symbols of a tracer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onward.backends.graph.registry import Attributes


def reduced_axes(attributes: Attributes, axes: Sequence[int] | None, rank: int) -> list[int]:
    """Return the axes that a reduction reduces, in order.

    Without any, every element is reduced alone, so that ReduceL2 gives the absolute value.
    """
    given = attributes.get("axes") if axes is None else axes
    if given:
        return sorted(a % rank for a in given)
    return [] if attributes.get("noop_with_empty_axes", 0) else list(range(rank))


def reshaped(attributes: Attributes, old: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the sizes that Reshape gives, with 0 replaced by the old size; one of them may be -1."""
    if attributes.get("allowzero", 0):
        return list(wanted)
    return [old[i] if isinstance(n, int) and n == 0 else n for i, n in enumerate(wanted)]


def split_sizes(attributes: Attributes, size: int, given: Sequence[int] | None) -> list[int]:
    """Return the sizes of the parts of an axis of `size`, from the input `given` or the attributes of Split."""
    sizes = attributes.get("split") if given is None else given
    if sizes is not None:
        return list(sizes)
    count = attributes.get("num_outputs") or attributes.outputs
    each = -(-size // count)
    return [each] * (count - 1) + [size - each * (count - 1)]


class Range(NamedTuple):
    """What Slice takes of one axis."""

    axis: int
    start: int
    end: int | None
    step: int


def slices(
    attributes: Attributes,
    shape: Sequence[int],
    starts: Sequence[int] | None,
    ends: Sequence[int] | None,
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> list[Range]:
    """Return the ranges of a Slice, as Python's `slice` understands them, from its inputs or attributes."""
    first = attributes["starts"] if starts is None else starts
    last = attributes["ends"] if ends is None else ends
    over = attributes.get("axes") if axes is None else axes
    over = range(len(first)) if over is None else over
    by = [1] * len(first) if steps is None else steps
    found = []
    for start, end, axis, step in zip(first, last, over, by, strict=True):
        axis = axis % len(shape)
        before_all = step < 0 and end < -shape[axis]
        found.append(Range(axis, start, None if before_all else end, step))
    return found


def pad_amounts(
    attributes: Attributes, rank: int, pads: Sequence[int] | None, axes: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Return what Pad adds before and after each axis; negative amounts crop."""
    given = attributes.get("pads") if pads is None else pads
    over = list(range(rank)) if axes is None else [a % rank for a in axes]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(over):
        before[axis], after[axis] = given[i], given[i + len(over)]
    return before, after


def mirrored(places: Any, size: int, mode: str) -> Any:
    """Return where Pad finds the samples at `places` of an axis, of which some are outside: -1 is before the first.

    `places` is a tensor of integers of any framework.
    """
    if mode == "edge":
        return (abs(places) - abs(places - (size - 1)) + (size - 1)) // 2  # between 0 and size - 1
    if mode == "wrap":
        return places % size
    period = max(2 * (size - 1), 1)
    return (period - abs(2 * (places % period) - period)) // 2  # forwards, then backwards


def along(axis: int, rank: int, size: Any = -1) -> list[Any]:
    """Return the shape of a vector that lies along `axis` of a tensor."""
    return [size if i == axis % rank else 1 for i in range(rank)]


class Blocks(NamedTuple):
    """How values move between the channels and the plane of an image: split into blocks, transpose, join again."""

    split: list[int]
    order: tuple[int, ...]
    joined: list[int]


def depth_to_space(attributes: Attributes, shape: Sequence[int]) -> Blocks:
    """Return how DepthToSpace moves the values of an image [N, C, H, W]."""
    (n, c, h, w), b = shape, attributes["blocksize"]
    joined = [n, c // b**2, h * b, w * b]
    if attributes.get("mode", "DCR") == "DCR":
        return Blocks([n, b, b, c // b**2, h, w], (0, 3, 4, 1, 5, 2), joined)
    return Blocks([n, c // b**2, b, b, h, w], (0, 1, 4, 2, 5, 3), joined)


def space_to_depth(attributes: Attributes, shape: Sequence[int]) -> Blocks:
    """Return how SpaceToDepth moves the values of an image [N, C, H, W]."""
    (n, c, h, w), b = shape, attributes["blocksize"]
    order = (0, 1, 3, 5, 2, 4) if attributes.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return Blocks([n, c, h // b, b, w // b, b], order, [n, c * b * b, h // b, w // b])
