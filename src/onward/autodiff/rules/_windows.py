"""Windows that move over the spatial axes of a tensor, for the rules of convolutions and pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onward.autodiff.problems import Unsupported
from onward.autodiff.rule import Rule
from onward.graph.builder import Value


@dataclasses.dataclass(frozen=True)
class Window:
    """How a kernel moves over the spatial axes of a tensor; None stands for sizes not known before the run."""

    kernel: tuple[int | None, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...] | None  # begins, then ends
    auto_pad: str
    group: int

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def axes(self) -> np.ndarray:
        """The spatial axes of the data."""
        return np.arange(2, self.rank + 2, dtype=np.int64)

    @property
    def attributes(self) -> dict[str, object]:
        """Strides and dilations as a node's attributes."""
        return {"strides": list(self.strides), "dilations": list(self.dilations)}

    @property
    def padding(self) -> dict[str, object]:
        """The padding as a node's attributes: pads, or auto_pad if the pads are not known before the run."""
        return {"auto_pad": self.auto_pad} if self.pads is None else {"pads": list(self.pads)}

    def reach(self, axis: int) -> int | None:
        """Return how many elements the dilated kernel spans on a spatial axis."""
        size = self.kernel[axis]
        return None if size is None else (size - 1) * self.dilations[axis] + 1


def spatial_rank(rule: Rule, *values: Value) -> int:
    """Return the number of spatial axes, from the rank of one of `values` or the length of an attribute."""
    for value in values:
        rank = rule.rank(value)
        if rank is not None:
            return rank - 2
    for name in ("kernel_shape", "strides", "dilations"):
        given = rule.attr(name)
        if given:
            return len(given)
    raise Unsupported("the rank of the input is unknown; give the model's inputs shapes (symbols are enough)")


def spatial(rule: Rule, value: Value, rank: int) -> tuple[int | None, ...]:
    """Return the `rank` spatial dimensions of `value`, None for those not known before the run."""
    dims = rule.dims(value)
    if dims is None:
        return (None,) * rank
    return tuple(d if isinstance(d, int) else None for d in dims[2:])


def window(rule: Rule, kernel: Sequence[int | None], data: Value) -> Window:
    """Return the window of a Conv or pooling node, with its pads computed from the shape of `data` if possible."""
    rank = len(kernel)
    strides = tuple(rule.attr("strides") or [1] * rank)
    dilations = tuple(rule.attr("dilations") or [1] * rank)
    auto_pad = rule.attr("auto_pad") or "NOTSET"
    made = Window(tuple(kernel), strides, dilations, None, auto_pad, rule.attr("group") or 1)
    if auto_pad == "NOTSET":
        pads: tuple[int, ...] | None = tuple(rule.attr("pads") or [0] * 2 * rank)
    elif auto_pad == "VALID":
        pads = (0,) * 2 * rank
    else:
        pads = _same_pads(made, spatial(rule, data, rank))
    return dataclasses.replace(made, pads=pads)


def _same_pads(win: Window, sizes: Sequence[int | None]) -> tuple[int, ...] | None:
    """Return the pads for which SAME_UPPER or SAME_LOWER gives ceil(size / stride) windows; None if not known yet."""
    begins, ends = [], []
    for axis, (size, stride) in enumerate(zip(sizes, win.strides, strict=True)):
        reach = win.reach(axis)
        if reach is None or (size is None and stride != 1):
            return None
        count = 1 if size is None else -(-size // stride)
        total = reach - 1 if size is None else max(0, (count - 1) * stride + reach - size)
        less, more = total // 2, total - total // 2
        begins.append(less if win.auto_pad == "SAME_UPPER" else more)
        ends.append(more if win.auto_pad == "SAME_UPPER" else less)
    return (*begins, *ends)


def reach_of(rule: Rule, win: Window, kernel: Value | None) -> Value:
    """Return the spans of the dilated kernel as an int64 vector: a constant if they are known."""
    op = rule.op
    spans = [win.reach(axis) for axis in range(win.rank)]
    if all(s is not None for s in spans):
        return op.constant(np.array(spans, np.int64))
    assert kernel is not None
    return op.Add(op.Mul(op.Sub(op.Shape(kernel, start=2), 1), np.array(win.dilations)), 1)


def runtime_pads(rule: Rule, win: Window, data: Value, windows: Value, kernel: Value | None) -> tuple[Value, Value]:
    """Return the SAME pads (begins, ends) as int64 vectors computed at run time from the shapes."""
    op = rule.op
    reach = reach_of(rule, win, kernel)
    span = op.Add(op.Mul(op.Sub(op.Shape(windows, start=2), 1), np.array(win.strides)), reach)
    total = op.Max(op.Sub(span, op.Shape(data, start=2)), [0])
    less = op.Div(total, 2)
    more = op.Sub(total, less)
    return (less, more) if win.auto_pad == "SAME_UPPER" else (more, less)


def extent(rule: Rule, value: Value, axis: int) -> int | Value:
    """Return one dimension: a number if it is known, else a 1-D int64 value."""
    known = rule.known_dim(value, axis)
    return rule.dim_of(value, axis) if known is None else known


def image_size(rule: Rule, win: Window, value: Value) -> int | Value:
    """Return the number of spatial elements."""
    sizes = [s for s in spatial(rule, value, win.rank) if s is not None]
    if len(sizes) == win.rank:
        return int(np.prod(sizes))
    return rule.op.ReduceProd(rule.op.Shape(value, start=2), keepdims=1)


def reshape_target(rule: Rule, parts: Sequence[int | Value]) -> Value:
    """Return a shape from numbers and 1-D int64 values: a constant if all are numbers."""
    op = rule.op
    if all(isinstance(p, int) for p in parts):
        return op.constant(np.array(parts, np.int64))
    return op.Concat(*(op.constant(np.array([p], np.int64)) if isinstance(p, int) else p for p in parts), axis=0)


def reshape(rule: Rule, value: Value, parts: Sequence[int | Value]) -> Value:
    """Return `value` in the shape made of `parts`; a 0 is a dimension of size zero."""
    empty = any(not isinstance(p, int) or p == 0 for p in parts) and not any(
        isinstance(p, int) and p == -1 for p in parts
    )
    return rule.op.Reshape(value, reshape_target(rule, parts), allowzero=1 if empty else None)
