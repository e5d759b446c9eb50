"""Pools: the gradient of each window goes to its largest element, to all alike, or to each by its share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._taps import Line, lines, to_the_first
from onward.autodiff.rules._windows import (
    Window,
    extent,
    reach_of,
    reshape,
    reshape_target,
    runtime_pads,
    spatial,
    spatial_rank,
    window,
)
from onward.autodiff.rules.convolution import transposed
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("MaxPool", opset=12)
def max_pool(rule: Rule, dY: Value) -> Grads:
    """Y = the largest X of each window, at Indices; dX = dY added up at those places."""
    win = window(rule, rule.attr("kernel_shape"), rule.input("X"))
    forms = {"indices": lambda: _at_indices(rule, win, dY), "compare": lambda: _by_comparing(rule, win, dY)}
    return {"X": rule.choose("X", forms, "compare" if rule.portable else "indices", changes_forward=True)}


def _at_indices(rule: Rule, win: Window, dY: Value) -> Value:
    """Return dX by a scatter: of equal elements the first gets the whole gradient, as in PyTorch; Indices names it."""
    op, X = rule.op, rule.input("X")
    rank = spatial_rank(rule, X)
    indices = op.Reshape(rule.request_output("Indices"), [-1])
    apart = all(s >= (win.reach(a) or 0) for a, s in enumerate(win.strides))  # no two windows overlap
    size = rule.static_shape(X)
    total = [int(np.prod(size))] if size is not None else op.Reshape(op.Size(X), [1])
    zeros = op.ConstantOfShape(total, value=np.zeros(1, X.dtype.numpy() if X.dtype is not None else np.float32))
    flat = op.ScatterElements(zeros, indices, op.Reshape(dY, [-1]), axis=0, reduction=None if apart else "add")
    if not rule.attr("storage_order", 0) or rank == 1:
        return rule.reshape_like(flat, X)
    # Column-major indices are row-major ones of the tensor with its spatial axes in reverse order.
    backwards = [0, 1, *range(rank + 1, 1, -1)]
    turned = reshape(rule, flat, [extent(rule, X, a) for a in backwards])
    return op.Transpose(turned, perm=backwards)


def _by_comparing(rule: Rule, win: Window, dY: Value) -> Value:
    """Return dX without Indices: dY goes to the first element of each window that equals Y.

    One axis after the other: in which row is the largest element, and then where in that row? The largest of each row
    is another MaxPool. This finds the same element of equal ones as Indices.
    """
    X, best = rule.input("X"), rule.output("Y")
    every = lines(rule, win, X, best, ceil=bool(rule.attr("ceil_mode", 0)))
    moving = [line for line in every if not line.trivial]
    reduced = [X]
    for line in reversed(moving[1:]):
        reduced.append(_pooled_along(rule, line, reduced[-1]))
    for line, data in zip(moving, reversed(reduced), strict=False):  # nothing moves where a window is one element
        behind = [later.count for later in every if later.axis > line.axis]
        dY, best = to_the_first(rule, line, data, best, dY, behind), data
    return dY


def _pooled_along(rule: Rule, line: Line, data: Value) -> Value:
    """Return the node's MaxPool of `data` along one axis only."""
    rank, own = line.rank - 2, line.axis - 2
    auto_pad = rule.attr("auto_pad") or "NOTSET"
    pads = rule.attr("pads") if auto_pad == "NOTSET" else None
    return rule.op.MaxPool(
        data,
        kernel_shape=[line.kernel if axis == own else 1 for axis in range(rank)],
        strides=[line.stride if axis == own else 1 for axis in range(rank)],
        dilations=[line.dilation if axis == own else 1 for axis in range(rank)],
        pads=[p if place % rank == own else 0 for place, p in enumerate(pads)] if pads else None,
        auto_pad=None if auto_pad == "NOTSET" else auto_pad,
        ceil_mode=rule.attr("ceil_mode", 0) or None,
    )


@gradient("AveragePool", opset=11)
def average_pool(rule: Rule, dY: Value) -> Grads:
    """Y = the mean of each window, so dX = dY / the number of elements, added up over the windows that hold X."""
    X, Y = rule.input("X"), rule.output("Y")
    win = _pool_window(rule, X, Y)
    counts = _counts(rule, win, X, Y)
    if isinstance(counts, int):
        return {"X": _spread(rule, win, dY, Y, X, 1.0 / counts)}
    return {"X": _spread(rule, win, rule.op.Div(dY, counts), Y, X, 1.0)}


@gradient("LpPool", opset=18)
def lp_pool(rule: Rule, dY: Value) -> Grads:
    """Y = (sum |X|^p)^(1/p) over each window, so dX = sign(X) |X|^(p-1) * the sum of dY Y^(1-p) over its windows."""
    X, Y = rule.input("X"), rule.output("Y")
    win = _pool_window(rule, X, Y)
    return {"X": _lp(rule, X, Y, dY, lambda share: _spread(rule, win, share, Y, X, 1.0))}


def _lp(rule: Rule, X: Value, Y: Value, dY: Value, spread: object) -> Value:
    op, p = rule.op, int(rule.attr("p", 2))
    assert callable(spread)
    share = dY
    if p > 1:
        # A window of zeros is a kink: slope 0 (PyTorch's lp_pool gives NaN there).
        safe = op.Where(op.Equal(Y, 0.0), 1.0, Y)
        share = op.Div(dY, safe if p == 2 else op.Pow(safe, float(p - 1)))
    shares = spread(share)
    if p > 1:
        shares = op.Mul(shares, X if p == 2 else op.Pow(X, float(p - 1)))
    # |X|^(p-1) sign(X) is X^(p-1) for even p. At X == 0 with p = 1: slope 0, as PyTorch's sign.
    return op.Mul(shares, op.Sign(X)) if p % 2 else shares


@gradient("GlobalAveragePool", opset=1)
def global_average_pool(rule: Rule, dY: Value) -> Grads:
    """Y = the mean over the spatial axes, so dX = dY / their size, everywhere."""
    op, X = rule.op, rule.input("X")
    sizes = spatial(rule, X, 0)
    if sizes and all(s is not None for s in sizes):
        share = op.Div(dY, float(np.prod([s for s in sizes if s is not None])))
        return {"X": op.Expand(share, [1, 1, *(s for s in sizes if s is not None)])}
    size = op.ReduceProd(op.Shape(X, start=2), keepdims=0)
    share = op.Div(dY, op.CastLike(size, dY))
    return {"X": op.Expand(share, rule.shape_of(X))}


@gradient("GlobalMaxPool", opset=1)
def global_max_pool(rule: Rule, dY: Value) -> Grads:
    """Y = the largest X over the spatial axes, so dX = dY there and 0 elsewhere."""
    op, X = rule.op, rule.input("X")
    flat = reshape(rule, X, [extent(rule, X, 0), extent(rule, X, 1), -1])
    # Of equal elements the first gets the whole gradient, as in PyTorch.
    where = op.ArgMax(flat, axis=2, keepdims=1)
    spread = op.ScatterElements(rule.zeros_like(flat), where, op.Reshape(dY, [0, 0, 1]), axis=2)
    return {"X": rule.reshape_like(spread, X)}


@gradient("GlobalLpPool", opset=2)
def global_lp_pool(rule: Rule, dY: Value) -> Grads:
    """Y = (sum |X|^p)^(1/p) over the spatial axes, so dX = sign(X) |X|^(p-1) * dY Y^(1-p)."""
    op, X, Y = rule.op, rule.input("X"), rule.output("Y")
    return {"X": _lp(rule, X, Y, dY, lambda share: op.Expand(share, rule.shape_of(X)))}


@gradient("MaxUnpool", opset=11, I=NON_DIFFERENTIABLE, output_shape=NON_DIFFERENTIABLE)
def max_unpool(rule: Rule, doutput: Value) -> Grads:
    """output[I] = X, so dX = doutput[I] (PyTorch's convention also where an index occurs twice)."""
    op, X = rule.op, rule.input("X")
    if rule.optional_input("output_shape") is not None:
        # As in the standard's reference, I counts in the shape given by the attributes, at the start of the output.
        rank = len(rule.attr("kernel_shape"))
        doutput = op.Slice(doutput, [0] * rank, _unpooled(rule, X, rank), np.arange(2, rank + 2))
    picked = op.GatherElements(op.Reshape(doutput, [-1]), op.Reshape(rule.input("I"), [-1]), axis=0)
    return {"X": rule.reshape_like(picked, X)}


def _unpooled(rule: Rule, X: Value, rank: int) -> Value:
    op, sizes = rule.op, spatial(rule, X, rank)
    kernel, pads = np.array(rule.attr("kernel_shape")), np.array(rule.attr("pads") or [0] * 2 * rank)
    strides = np.array(rule.attr("strides") or [1] * rank)
    rest = kernel - pads[:rank] - pads[rank:]
    if all(s is not None for s in sizes):
        return op.constant((np.array(sizes) - 1) * strides + rest)
    return op.Add(op.Mul(op.Sub(op.Shape(X, start=2), 1), strides), rest)


# -- windows of pools ----------------------------------------------------------------------------------------


def _pool_window(rule: Rule, X: Value, Y: Value) -> Window:
    """Return the window with pads up to where the last windows end; with ceil_mode that may exceed the given pads."""
    win = window(rule, rule.attr("kernel_shape"), X)
    if win.pads is None or not rule.attr("ceil_mode", 0):
        return win
    begins, ends = win.pads[: win.rank], list(win.pads[win.rank :])
    sizes, counts = spatial(rule, X, win.rank), spatial(rule, Y, win.rank)
    for axis, (size, count, stride) in enumerate(zip(sizes, counts, win.strides, strict=True)):
        if stride == 1:
            continue
        if size is None or count is None:
            ends[axis] = 0  # `scatter` cuts at the end of X: a small pad is safe
        else:
            ends[axis] = max(0, (count - 1) * stride + (win.reach(axis) or 0) - size - begins[axis])
    return dataclasses.replace(win, pads=(*begins, *ends))


def _spread(rule: Rule, win: Window, share: Value, Y: Value, like: Value, weight: float) -> Value:
    """Return, for each element of `like`, the sum of `weight * share` over the windows that hold it."""
    op, kernel = rule.op, [k or 1 for k in win.kernel]
    pads = [k - 1 - p for p, k in zip(win.pads or (), [*kernel, *kernel], strict=False)]

    def repeated() -> Value:
        part = share if weight == 1.0 else op.Mul(share, weight)
        thin = op.Unsqueeze(part, np.arange(3, 2 * win.rank + 2, 2))
        thick = op.Expand(thin, [1, 1, *(d for k in kernel for d in (1, k))])
        return rule.reshape_like(thick, like)

    def pooled() -> Value:
        mean = op.AveragePool(share, kernel_shape=kernel, pads=pads, count_include_pad=1)
        total = weight * int(np.prod(kernel))
        return mean if total == 1.0 else op.Mul(mean, total)

    def scattered() -> Value:
        ones = op.constant(np.full((1, 1, *kernel), weight), like.dtype)
        folded = op.Reshape(share, reshape_target(rule, [-1, 1, *(extent(rule, Y, int(a)) for a in win.axes)]))
        return rule.reshape_like(transposed(rule, win, folded, ones, Y, like), like)

    forms = {}
    if _windows_tile(rule, win, kernel, like, Y):
        forms["repeat"] = repeated
    if win.pads is not None and set(win.strides) <= {1} and set(win.dilations) <= {1} and min(pads, default=0) >= 0:
        forms["pool"] = pooled
    forms["scatter"] = scattered
    return rule.choose("X", forms, next(iter(forms)))


def _windows_tile(rule: Rule, win: Window, kernel: list[int], X: Value, Y: Value) -> bool:
    """Return whether each element of X is certainly in exactly one window."""
    if win.pads is None or any(win.pads) or kernel != list(win.strides) or not set(win.dilations) <= {1}:
        return False
    sizes, counts = spatial(rule, X, win.rank), spatial(rule, Y, win.rank)
    return all(c is not None and n == c * k for n, c, k in zip(sizes, counts, kernel, strict=True))


def _counts(rule: Rule, win: Window, X: Value, Y: Value) -> int | Value:
    """Return the number of elements in each window: one number, or a tensor that broadcasts over N and C."""
    include, ceil = bool(rule.attr("count_include_pad", 0)), bool(rule.attr("ceil_mode", 0))
    explicit = rule.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    given = window(rule, rule.attr("kernel_shape"), X).pads if explicit else win.pads
    size = int(np.prod([k or 1 for k in win.kernel]))
    if not (ceil and explicit) and (include or (given is not None and not any(given))):
        return size
    sizes = [s for s in spatial(rule, X, win.rank) if s is not None]
    counts = [c for c in spatial(rule, Y, win.rank) if c is not None]
    if given is None or len(sizes) < win.rank or len(counts) < win.rank:
        return _runtime_counts(rule, win, X, Y, given if include else None)
    table = _count_table(win, given, sizes, counts, include)
    return size if (table == size).all() else rule.op.constant(table, X.dtype)


def _count_table(win: Window, pads: Sequence[int], sizes: list[int], counts: list[int], include: bool) -> np.ndarray:
    """Return the number of elements in each window, with the pads if `include`."""
    table = np.ones((1, 1, *[1] * win.rank))
    for axis, (length, count) in enumerate(zip(sizes, counts, strict=True)):
        begin, end = pads[axis], pads[axis + win.rank]
        taps = np.arange(win.kernel[axis] or 1) * win.dilations[axis]
        places = np.arange(count)[:, None] * win.strides[axis] - begin + taps
        low, high = (-begin, length + end) if include else (0, length)
        inside = ((places >= low) & (places < high)).sum(axis=1)
        table = table * inside.reshape([-1 if a == axis + 2 else 1 for a in range(win.rank + 2)])
    return table


def _runtime_counts(rule: Rule, win: Window, X: Value, Y: Value, counted: tuple[int, ...] | None) -> Value:
    """Return the counts as a convolution of ones: over X alone, or with the pads `counted`."""
    op = rule.op
    length = op.Shape(X, start=2)
    none = op.constant(np.zeros(win.rank, np.int64))
    if counted is not None:
        length = op.Add(length, np.array(counted[: win.rank]) + np.array(counted[win.rank :]))
        begins = none
    elif win.pads is None:
        begins, _ = runtime_pads(rule, win, X, Y, None)
    else:
        begins = op.constant(np.array(win.pads[: win.rank], np.int64))
    one = op.constant(np.ones((1, 1, *[1] * win.rank)), X.dtype)
    lead = op.constant(np.ones(2, np.int64))
    ones = op.Expand(one, op.Concat(lead, length, axis=0))
    span = op.Add(op.Mul(op.Sub(op.Shape(Y, start=2), 1), np.array(win.strides)), reach_of(rule, win, None))
    ends = op.Max(op.Sub(op.Sub(span, length), begins), [0])
    zeros = op.constant(np.zeros(2, np.int64))
    padded = op.Pad(ones, op.Concat(zeros, begins, zeros, ends, axis=0))
    kernel = op.constant(np.ones((1, 1, *(k or 1 for k in win.kernel))), X.dtype)
    return op.Conv(padded, kernel, **win.attributes)
