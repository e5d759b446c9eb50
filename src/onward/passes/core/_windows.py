"""Windows that move over the spatial axes of a tensor, as Gather with a computed index; sizes may be unknown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules._windows import spatial_rank as spatial_rank
from onward.graph.builder import Value
from onward.passes.core.registry import Lowering

Size = int | Value


class Windows:
    """The kernel of a Conv or pool on `data`: pads, number of windows, and the positions that they read."""

    def __init__(self, at: Lowering, data: Value, kernel: Sequence[Size]) -> None:
        self.at, self.data, self.kernel = at, data, list(kernel)
        self.rank = len(self.kernel)
        if data.shape is None:
            data.shape = ir.Shape([None] * (self.rank + 2))
        self.strides = [int(s) for s in at.attr("strides") or [1] * self.rank]
        self.dilations = [int(d) for d in at.attr("dilations") or [1] * self.rank]
        self.sizes = [at.size(data, 2 + i) for i in range(self.rank)]
        self.reach = [at.add(at.mul(at.sub(k, 1), d), 1) for k, d in zip(self.kernel, self.dilations, strict=True)]
        self.ceil = bool(at.attr("ceil_mode", 0)) if "ceil_mode" in _attributes(at) else False
        self.auto = at.attr("auto_pad") or "NOTSET"
        pads = [int(p) for p in at.attr("pads") or [0] * 2 * self.rank]
        self.begins: list[Size] = list(pads[: self.rank])
        self.ends: list[Size] = list(pads[self.rank :])
        self.given_ends: list[Size] = list(self.ends)
        self.counts: list[Size] = []
        for axis in range(self.rank):
            if self.auto.startswith("SAME"):
                self._same(axis)
            elif self.auto == "VALID":
                self.begins[axis] = self.ends[axis] = self.given_ends[axis] = 0
            self.counts.append(self._count(axis))

    def _same(self, axis: int) -> None:
        at, stride, size = self.at, self.strides[axis], self.sizes[axis]
        count = at.div(at.add(size, stride - 1), stride)
        total = at.most(at.sub(at.add(at.mul(at.sub(count, 1), stride), self.reach[axis]), size), 0)
        less = at.div(total, 2)
        more = at.sub(total, less)
        begin, end = (less, more) if self.auto == "SAME_UPPER" else (more, less)
        self.begins[axis], self.ends[axis], self.given_ends[axis] = begin, end, end

    def _count(self, axis: int) -> Size:
        """Return the number of windows; with ceil_mode the end is padded as far as the last of them reaches."""
        at, stride = self.at, self.strides[axis]
        before = at.add(self.sizes[axis], self.begins[axis])
        room = at.sub(at.add(before, self.ends[axis]), self.reach[axis])
        if not self.ceil:
            return at.add(at.div(room, stride), 1)
        count = at.add(at.div(at.add(room, stride - 1), stride), 1)
        # No window starts behind the data and the pads before it.
        count = at.least(count, at.add(at.div(at.sub(before, 1), stride), 1))
        needed = at.sub(at.add(at.mul(at.sub(count, 1), stride), self.reach[axis]), before)
        self.ends[axis] = at.most(needed, 0)
        return count

    def index(self, axis: int) -> Value:
        """Return the position in the padded data of each element of each window: [windows, kernel]."""
        at, op = self.at, self.at.op
        starts, taps = at.count(self.counts[axis]), at.count(self.kernel[axis])
        known = [v.const_value.numpy() if v.const_value is not None else None for v in (starts, taps)]
        stride, dilation = self.strides[axis], self.dilations[axis]
        if known[0] is not None and known[1] is not None:
            return op.constant((known[0][:, None] * stride + known[1] * dilation).astype(np.int64))
        first = starts if stride == 1 else op.Mul(starts, stride)
        second = taps if dilation == 1 else op.Mul(taps, dilation)
        out = op.Add(at.reshape(first, [-1, 1]), second)
        out.shape = ir.Shape([None, None])
        return out

    def padded(self, value: object = 0) -> Value:
        """Return the data with `value` around it."""
        return pad(self.at, self.data, self.begins, self.ends, value)

    def trivial(self, axis: int) -> bool:
        """Return whether each window is one element, the next one for the next window."""
        return self.strides[axis] == 1 and isinstance(self.kernel[axis], int) and self.kernel[axis] == 1

    def patches(self, value: object = 0) -> Value:
        """Return all windows: [N, C, kernel …, windows …]."""
        at, op = self.at, self.at.op
        data = self.padded(value)
        for axis in reversed(range(self.rank)):
            data = op.Gather(data, self.index(axis), axis=2 + axis)
        order = [0, 1, *range(3, 3 + 2 * self.rank, 2), *range(2, 2 + 2 * self.rank, 2)]
        out = op.Transpose(data, perm=order)
        out.shape = _shape([at.size(self.data, 0), at.size(self.data, 1), *self.kernel, *self.counts])
        return out

    def reduced(self, data: Value, reduction: str) -> Value:
        """Return the reduction of each window of padded data, one axis after the other."""
        op = self.at.op
        for axis in range(self.rank):
            if not self.trivial(axis):
                windows = op.Gather(data, self.index(axis), axis=2 + axis)
                (data,) = op.call(reduction, [windows, np.array([3 + axis], np.int64)], keepdims=0)
        data.shape = _shape([self.at.size(self.data, 0), self.at.size(self.data, 1), *self.counts])
        return data


def _attributes(at: Lowering) -> tuple[str, ...]:
    assert at.schema is not None
    return at.schema.attributes


def _shape(sizes: Sequence[Size]) -> ir.Shape:
    return ir.Shape([s if isinstance(s, int) else None for s in sizes])


def pad(at: Lowering, data: Value, begins: Sequence[Size], ends: Sequence[Size], value: object = 0) -> Value:
    """Return `data` with `value` before and behind its last axes."""
    if all(isinstance(p, int) and p == 0 for p in (*begins, *ends)):
        return data
    lead = [0] * (at.rank_of(data) - len(begins))
    fill = None if isinstance(value, int) and value == 0 else at.op.constant(value, at.dtype(data))
    return at.op.Pad(data, at.vector([*lead, *begins, *lead, *ends]), fill)


def overlap_add(
    at: Lowering,
    columns: Value,
    rows: Size,
    kernel: Sequence[Size],
    image: Sequence[Size],
    full: Sequence[Size],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Value:
    """Return [rows, full ...]: columns [rows, kernel ..., image ...] added at image * stride + kernel * dilation."""
    op, rank = at.op, len(kernel)
    place: Value | None = None
    step: Size = 1
    total = 2 * rank
    for axis in reversed(range(rank)):
        taps = at.along(op.Mul(at.count(kernel[axis]), dilations[axis]), axis, total)
        starts = at.along(op.Mul(at.count(image[axis]), strides[axis]), rank + axis, total)
        here = op.Mul(op.Add(taps, starts), at.scalar(step))
        place = here if place is None else op.Add(place, here)
        step = at.mul(step, full[axis])
    assert place is not None
    cells = at.mul(*kernel, *image)
    updates = op.Transpose(at.reshape(columns, [rows, cells]), perm=[1, 0])
    zeros = op.Expand(op.constant(0, at.dtype(columns)), at.vector([step, rows]))
    summed = op.ScatterND(zeros, at.reshape(place, [cells, 1]), updates, reduction="add")
    out = at.reshape(op.Transpose(summed, perm=[1, 0]), [rows, *full])
    return out
