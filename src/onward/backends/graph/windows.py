"""The arithmetic of windows that slide over an image: pads, strides and dilations of convolution and pooling.

Everything here is Python arithmetic on sizes, so sizes may be the symbols of a tracer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.backends.graph.registry import Attributes

Pads = list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Window:
    """A window of `kernel` samples per spatial axis, its steps, and the (before, after) pads of the image."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: Pads

    @property
    def symmetric(self) -> bool:
        """Whether each axis has as many pads before as after."""
        return all(before == after for before, after in self.pads)

    def span(self, axis: int) -> int:
        """Return how many samples a window covers, with the gaps of its dilation."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1


def window_of(attributes: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return the window of a Conv or a pooling over an image of `sizes`, from its attributes."""
    rank = len(kernel)
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    return Window(list(kernel), strides, dilations, _pads_of(attributes, sizes, kernel, strides, dilations))


def pads_of(attributes: Attributes, rank: int) -> Pads:
    """Return the attribute `pads` as (before, after) per axis."""
    flat = attributes.get("pads") or [0] * (2 * rank)
    return [(flat[i], flat[i + rank]) for i in range(rank)]


def _pads_of(
    attributes: Attributes, sizes: Sequence[int], kernel: Sequence[int], strides: list[int], dilations: list[int]
) -> Pads:
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return pads_of(attributes, len(kernel))
    if mode == "VALID":
        return [(0, 0)] * len(kernel)
    found = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return found


def pooled(attributes: Attributes, sizes: Sequence[int], window: Window) -> tuple[list[int], Pads]:
    """Return the number of windows per axis, and the pads so that the last window fits (`ceil_mode`)."""
    counts, extended = [], []
    ceil = attributes.get("ceil_mode", 0)
    for axis, (size, stride, (before, after)) in enumerate(zip(sizes, window.strides, window.pads, strict=True)):
        room = size + before + after - window.span(axis)
        count = (-(-room // stride) if ceil else room // stride) + 1
        if ceil and (count - 1) * stride >= size + before:
            count -= 1  # a window that starts in the padding after the end does not count
        need = (count - 1) * stride + window.span(axis) - size - before
        counts.append(count)
        extended.append((before, max(need, after)))
    return counts, extended


def transposed(attributes: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Window, Pads]:
    """Return the window of a ConvTranspose, and what to add (crop, if negative) before and after the full result."""
    rank = len(kernel)
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    extra = attributes.get("output_padding") or [0] * rank
    window = Window(list(kernel), strides, dilations, pads_of(attributes, rank))
    full = [(sizes[i] - 1) * strides[i] + window.span(i) + extra[i] for i in range(rank)]
    wanted = attributes.get("output_shape")
    mode = attributes.get("auto_pad", "NOTSET")
    if wanted is not None:
        wanted = wanted[-rank:]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [min(sizes[i] * strides[i], full[i]) for i in range(rank)]
    pads = window.pads
    if wanted is not None:
        pads = []
        for i in range(rank):
            total = max(0, full[i] - wanted[i])
            before = total // 2 if mode == "SAME_UPPER" else total - total // 2
            pads.append((before, full[i] - wanted[i] - before))
    return window, [(-before, extra[i] - after) for i, (before, after) in enumerate(pads)]


def unpooled(attributes: Attributes, sizes: Sequence[int]) -> list[int]:
    """Return the sizes that MaxUnpool infers for an image of `sizes`."""
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides") or [1] * len(kernel)
    pads = pads_of(attributes, len(kernel))
    return [(n - 1) * s + k - sum(p) for n, s, k, p in zip(sizes, strides, kernel, pads, strict=True)]
