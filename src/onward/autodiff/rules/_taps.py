"""Windows as slices: no Indices, no kernels of ones and zeros, only Slice, Pad, arithmetic.

The portable profile has these forms, and `Rule.choose` offers them.

A tap is one place of a kernel. The elements of the data under one tap of all windows are one Slice. Windows over
several axes are windows over one axis after the other, the last axis first: a kernel of 5 x 5 needs 10 slices, not 25.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.rule import Rule
from onward.autodiff.rules._windows import Window, extent, reshape_target
from onward.autodiff.sizes import Size
from onward.graph.builder import Value

# Around the data, where no window has its largest element: not infinite, which some shader languages do not have.
_LOWEST = {ir.DataType.FLOAT16: -65504.0}
_LOWEST_OF_ALL = -3.3895e38  # of bfloat16, about


@dataclasses.dataclass(frozen=True)
class Line:
    """How windows move along one axis; a size is an int, or an int64 value of one element."""

    axis: int  # of the data
    rank: int  # of the data
    kernel: int
    stride: int
    dilation: int
    size: Size  # of the data
    count: Size  # of windows
    begin: Size  # the pad before the data
    end: Size  # what the windows read behind the data

    @property
    def trivial(self) -> bool:
        """Whether each window is one element, the next one for the next window."""
        return self.kernel == self.stride == 1 and is_number(self.begin, 0) and is_number(self.end, 0)

    def at(self, axis: int, rank: int) -> Line:
        """Return the same windows along another axis of a tensor that has more axes."""
        return dataclasses.replace(self, axis=axis, rank=rank)


def is_number(size: Size, number: int) -> bool:
    """Return whether a size is known to be `number`."""
    return isinstance(size, int) and size == number


def lines(rule: Rule, win: Window, X: Value, Y: Value, *, ceil: bool = False) -> list[Line]:
    """Return the windows of a Conv or pool from X to Y along each spatial axis; the size of the kernel is known."""
    found = []
    for index, kernel in enumerate(win.kernel):
        assert kernel is not None
        axis, stride, dilation = index + 2, win.strides[index], win.dilations[index]
        size, count = extent(rule, X, axis), extent(rule, Y, axis)
        begin: Size
        end: Size
        if win.pads is not None and not ceil:
            begin, end = win.pads[index], win.pads[index + win.rank]
        else:
            span = rule.add(rule.mul(rule.sub(count, 1), stride), (kernel - 1) * dilation + 1)
            if win.pads is not None:
                begin = win.pads[index]
            else:
                total = rule.most(rule.sub(span, size), 0)
                less = rule.div(total, 2)
                begin = less if win.auto_pad == "SAME_UPPER" else rule.sub(total, less)
            end = rule.most(rule.sub(rule.sub(span, begin), size), 0)
        found.append(Line(axis, win.rank + 2, kernel, stride, dilation, size, count, begin, end))
    return found


def pad(rule: Rule, value: Value, line: Line, before: Size, behind: Size, fill: float = 0.0) -> Value:
    """Return `value` with `fill` before and behind it on the axis of `line`."""
    if is_number(before, 0) and is_number(behind, 0):
        return value
    lead, rest = [0] * line.axis, [0] * (line.rank - line.axis - 1)
    sizes = _vector(rule, [*lead, before, *rest, *lead, behind, *rest])
    return rule.op.Pad(value, sizes, None if fill == 0.0 else rule.op.constant(fill, value.dtype))


def taps(rule: Rule, line: Line, data: Value, fill: float = 0.0) -> Iterator[Value]:
    """Yield the elements of `data` under each tap, in the order of the windows."""
    padded = pad(rule, data, line, line.begin, line.end, fill)
    for tap in range(line.kernel):
        start = tap * line.dilation
        stop = rule.add(rule.mul(rule.sub(line.count, 1), line.stride), start + 1)
        yield _slice(rule, padded, line, start, stop, line.stride)


def spread(rule: Rule, line: Line, parts: Sequence[Value], behind: Sequence[Size]) -> Value:
    """Return the sum of the parts in the shape of the data: part t is what goes to the elements under tap t.

    `behind` are the sizes of the parts on the axes behind that of `line`. Element i of part t belongs to place
    i * stride + t * dilation of the padded data. Parts that begin at the same place, modulo the stride, are shifted and
    added; then all of these are interleaved.
    """
    op, stride = rule.op, line.stride
    if isinstance(line.begin, int) and isinstance(line.size, int) and isinstance(line.count, int):
        # Each row is what is left of the data, so that most of its parts need neither a shift nor a cut.
        length = -(-line.size // stride)
        rows = [_row(rule, line, parts, place, length) for place in range(stride)]
        joined = _interleaved(rule, line, rows, length * stride, behind)
        return joined if length * stride == line.size else _slice(rule, joined, line, 0, line.size, 1)
    steps = [divmod(tap * line.dilation, stride) for tap in range(line.kernel)]
    most = max(shift for shift, _ in steps)
    rows = [None] * stride
    for (shift, start), part in zip(steps, parts, strict=True):
        shifted, row = pad(rule, part, line, shift, most - shift), rows[start]
        rows[start] = shifted if row is None else op.Add(row, shifted)
    total = rule.mul(rule.add(line.count, most), stride)
    joined = _interleaved(rule, line, rows, total, behind)
    stop = rule.add(line.begin, line.size)
    joined = pad(rule, joined, line, 0, rule.most(rule.sub(stop, total), 0))
    return _slice(rule, joined, line, line.begin, stop, 1)


def _row(rule: Rule, line: Line, parts: Sequence[Value], place: int, length: int) -> Value | None:
    """Return what goes to the places `place`, `place + stride` … of the data, from all parts; None if nothing does."""
    assert isinstance(line.begin, int)
    assert isinstance(line.count, int)
    row: Value | None = None
    for tap, part in enumerate(parts):
        window, rest = divmod(place + line.begin - tap * line.dilation, line.stride)  # the first that has tap there
        first, last = max(window, 0), min(window + length, line.count)
        if rest or first >= last:
            continue
        cut = part if (first, last) == (0, line.count) else _slice(rule, part, line, first, last, 1)
        whole = pad(rule, cut, line, first - window, window + length - last)
        row = whole if row is None else rule.op.Add(row, whole)
    return row


def _interleaved(rule: Rule, line: Line, rows: Sequence[Value | None], length: Size, behind: Sequence[Size]) -> Value:
    """Return the elements of the rows in turn, along the axis of `line`; None is a row of zeros."""
    op, made = rule.op, [row for row in rows if row is not None]
    if len(rows) == 1:
        return made[0]
    zeros = rule.zeros_like(made[0]) if len(made) < len(rows) else made[0]
    thin = [op.Unsqueeze(zeros if row is None else row, [line.axis + 1]) for row in rows]
    target = _vector(rule, [*[0] * line.axis, length, *behind])  # a 0 keeps the size
    return op.Reshape(op.Concat(*thin, axis=line.axis + 1), target)


def to_the_first(rule: Rule, line: Line, data: Value, best: Value, dbest: Value, behind: Sequence[Size]) -> Value:
    """Return the gradient of `data`, of whose windows `best` is the largest element: the first of equals gets it.

    `behind` are the sizes of `data` on the axes behind that of `line`.
    """
    op, dtype = rule.op, dbest.dtype
    assert dtype is not None
    parts, rest = [], dbest
    for tap in itertools.islice(taps(rule, line, data, _LOWEST.get(dtype, _LOWEST_OF_ALL)), line.kernel - 1):
        part = op.Mul(rest, op.Cast(op.Equal(tap, best), to=dtype))
        rest = op.Sub(rest, part)
        parts.append(part)
    return spread(rule, line, [*parts, rest], behind)  # if no other tap holds the largest element, the last one does


def columns(rule: Rule, win: Window, X: Value, Y: Value) -> Value:
    """Return the elements of X under each tap of the kernel of a Conv from X to Y: [N, C, kernel ..., windows ...]."""
    return _stacked(rule, list(columns_by_line(rule, win, X, Y)))


def columns_by_line(rule: Rule, win: Window, X: Value, Y: Value) -> Iterator[Value]:
    """Yield `columns` for each tap of the kernel's first axis: [N, C, kernel on the other axes ..., windows ...]."""
    (first, *rest), data = lines(rule, win, X, Y), X
    for inserted, line in enumerate(reversed(rest)):
        here = line.at(line.axis + inserted, line.rank + inserted)
        data = _stacked(rule, [data] if here.trivial else list(taps(rule, here, data)))
    here = first.at(first.axis + len(rest), first.rank + len(rest))
    yield from [data] if here.trivial else taps(rule, here, data)


def _stacked(rule: Rule, parts: Sequence[Value]) -> Value:
    """Return the parts side by side on a new axis, behind the channels."""
    thin = [rule.op.Unsqueeze(part, [2]) for part in parts]
    return thin[0] if len(thin) == 1 else rule.op.Concat(*thin, axis=2)


def sums(rule: Rule, win: Window, X: Value, dY: Value, Y: Value) -> Value:
    """Return for each channel the sums of dY times the elements of X under each tap of a Conv: [1, C, taps].

    Each image is one line of numbers, of which one Slice reads what is under a tap of all windows: the places of two
    taps differ by the same number everywhere. Behind each row of dY come zeros, for what is between the last window of
    a row and the first of the next. With strides there is such a line for each place modulo the stride. All spatial
    sizes are known.
    """
    every = lines(rule, win, X, Y)
    op, none = rule.op, [0, 0]
    steps = [[divmod(tap * line.dilation, line.stride) for tap in range(line.kernel)] for line in every]
    begins, sizes, counts = (np.array([getattr(line, n) for line in every]) for n in ("begin", "size", "count"))
    strides = np.array(win.strides)
    wide = counts + [max(shift for shift, _ in each) for each in steps]  # a row of dY with its zeros
    rows = wide + (np.arange(win.rank) == 0)  # the last Slice ends behind the last row that a window reads
    behind = np.maximum(rows * strides - begins - sizes, 0)
    image = op.Pad(X, np.array([*none, *begins, *none, *behind])) if begins.any() or behind.any() else X
    zeros = [0, *(wide - counts)[1:]]
    share = op.Pad(dY, np.array([*none, *[0] * win.rank, *none, *zeros])) if any(zeros) else dY
    length = int(counts[0] * np.prod(wide[1:]))
    share = op.Reshape(share, [0, 0, length])
    whole: dict[tuple[int, ...], Value] = {}
    found = []
    for places in itertools.product(*steps):
        starts = tuple(start for _, start in places)
        if starts not in whole:
            thin = op.Slice(image, np.array(starts), rows * strides, win.axes, strides) if strides.max() > 1 else image
            whole[starts] = op.Reshape(thin, [0, 0, int(np.prod(rows))])
        at = 0
        for (shift, _), size in zip(places, wide, strict=True):
            at = at * int(size) + shift
        under = op.Slice(whole[starts], [at], [at + length], [2])
        found.append(op.ReduceSum(op.Mul(share, under), [0, 2], keepdims=1))
    return op.Concat(*found, axis=2)


def _slice(rule: Rule, value: Value, line: Line, start: Size, stop: Size, step: int) -> Value:
    op = rule.op
    first, last = ([s] if isinstance(s, int) else s for s in (start, stop))
    return op.Slice(value, first, last, [line.axis], *([[step]] if step != 1 else []))


def _vector(rule: Rule, parts: Sequence[Size]) -> Value:
    """Return sizes as one int64 vector; numbers that follow each other are one constant."""
    if all(isinstance(p, int) for p in parts):
        return reshape_target(rule, parts)
    op, pieces, numbers = rule.op, [], []
    for part in parts:
        if isinstance(part, int):
            numbers.append(part)
            continue
        if numbers:
            pieces.append(op.constant(np.array(numbers, np.int64)))
        pieces, numbers = [*pieces, part], []
    if numbers:
        pieces.append(op.constant(np.array(numbers, np.int64)))
    return pieces[0] if len(pieces) == 1 else op.Concat(*pieces, axis=0)
