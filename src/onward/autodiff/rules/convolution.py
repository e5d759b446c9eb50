"""Convolutions. The gradient of a convolution with respect to its input is its transpose, and the other way round.

The gradient with respect to the kernel is expensive. The textbook form `Conv(X^T, dY^T)` is ten times slower on ONNX
Runtime than a matrix product with the columns of X (im2col). A grouped Conv with one-hot kernels is an im2col that
ONNX Runtime executes in parallel, with the same strides, pads and dilations. Some runtimes compute that Conv wrongly:
in the portable profile, slices of X make the columns, and a depthwise kernel needs none. Columns of large images would
need many times the memory of the image: there, one product for each tap of the kernel reads a slice of X. The textbook
form remains for kernels whose size is not known before the run. Which of them is the fastest depends on the sizes and
the machine: `Rule.choose` offers those that are possible, and the usual one is the fastest in most cases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from onward.autodiff.registry import gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules import _taps
from onward.autodiff.rules._windows import (
    Window,
    extent,
    image_size,
    reach_of,
    reshape,
    reshape_target,
    runtime_pads,
    spatial,
    spatial_rank,
    window,
)
from onward.autodiff.types import Grads
from onward.graph.builder import Value

# Above this size, the channels become part of the batch instead of repeating the one-hot kernels per channel.
_LARGEST_KERNEL_CONSTANT = 1 << 16
# Columns with more elements (256 MiB of float32) are not made at once.
_MOST_COLUMNS = 1 << 26


@gradient("Conv", opset=11)
def conv(rule: Rule, dY: Value) -> Grads:
    """Y = X * W + B, so dX = dY convolved with W transposed, dW = dY times the columns of X, dB = the sum of dY."""
    X, W, Y = rule.input("X"), rule.input("W"), rule.output("Y")
    rank = spatial_rank(rule, X, W, Y)
    win = window(rule, _kernel(rule, W, rank), X)
    grads: dict[str, Value | list[Value | None] | None] = {}
    if rule.needs("X"):
        grads["X"] = scatter(rule, win, dY, W, Y, like=X)
    if rule.needs("W"):
        grads["W"] = correlate(rule, win, X, dY, Y, like=W)
    if rule.optional_input("B") is not None and rule.needs("B"):
        grads["B"] = rule.sum_over(dY, [0, *range(2, rank + 2)])
    return grads


@gradient("ConvTranspose", opset=11)
def conv_transpose(rule: Rule, dY: Value) -> Grads:
    """Y spreads each X over a window, so dX = dY convolved with W, dW = X times the columns of dY, dB = the sum."""
    X, W = rule.input("X"), rule.input("W")
    rank = spatial_rank(rule, X, W, rule.output("Y"))
    win, dY_read = _transposed_window(rule, X, W, dY, rank)
    grads: dict[str, Value | list[Value | None] | None] = {}
    if rule.needs("X"):
        grads["X"] = rule.op.Conv(dY_read, W, group=win.group, **win.attributes, **win.padding)
    if rule.needs("W"):
        grads["W"] = correlate(rule, win, dY_read, X, X, like=W)
    if rule.optional_input("B") is not None and rule.needs("B"):
        grads["B"] = rule.sum_over(dY, [0, *range(2, rank + 2)])
    return grads


def _transposed_window(rule: Rule, X: Value, W: Value, dY: Value, rank: int) -> tuple[Window, Value]:
    """Return the window of a Conv over dY with one output for each X, and dY cut to what that Conv reads."""
    strides = tuple(rule.attr("strides") or [1] * rank)
    dilations = tuple(rule.attr("dilations") or [1] * rank)
    extra = rule.attr("output_padding") or [0] * rank
    win = Window(_kernel(rule, W, rank), strides, dilations, None, "NOTSET", rule.attr("group") or 1)
    pads = [_transposed_pads(rule, win, axis, size, extra[axis]) for axis, size in enumerate(spatial(rule, X, rank))]
    known = [p for p in pads if p is not None]
    if len(known) < rank:
        return _transposed_window_at_run_time(rule, win, X, W, dY, extra)
    begins, ends = ([p[side] for p in known] for side in (0, 1))
    if any(e <= -s for e, s in zip(ends, strides, strict=True)):
        stops = np.array([min(e, 0) or np.iinfo(np.int64).max for e in ends])
        dY = rule.op.Slice(dY, [0] * rank, stops, win.axes)
    return dataclasses.replace(win, pads=(*begins, *(max(e, 0) for e in ends))), dY


def _transposed_pads(rule: Rule, win: Window, axis: int, size: int | None, extra: int) -> tuple[int, int] | None:
    """Return what the first and last window of dY need before and behind it on one axis; None if it is not known yet.

    The second number is negative if dY is too long.
    """
    rank, auto_pad, wanted = win.rank, rule.attr("auto_pad") or "NOTSET", rule.attr("output_shape")
    if not auto_pad.startswith("SAME") and not wanted:
        pads = (rule.attr("pads") or [0] * 2 * rank) if auto_pad == "NOTSET" else [0] * 2 * rank
        return pads[axis], pads[axis + rank] - extra
    reach, stride = win.reach(axis), win.strides[axis]
    if reach is None or (size is None and wanted):
        return None
    span = ((size or 1) - 1) * stride + reach
    # SAME cuts what exceeds one stride for each X; it adds nothing.
    out = wanted[axis - rank] if wanted else min((size or 1) * stride, span + extra)
    total = max(0, span + extra - out)
    begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    return begin, span - begin - out


def _transposed_window_at_run_time(
    rule: Rule, win: Window, X: Value, W: Value, dY: Value, extra: Sequence[int]
) -> tuple[Window, Value]:
    op = rule.op
    reach = reach_of(rule, win, W)
    span = op.Add(op.Mul(op.Sub(op.Shape(X, start=2), 1), np.array(win.strides)), reach)
    size = op.Shape(dY, start=2)
    total = op.Max(op.Sub(op.Add(span, np.array(extra)), size), [0])
    less = op.Div(total, 2)
    begins = less if rule.attr("auto_pad") == "SAME_UPPER" else op.Sub(total, less)
    ends = op.Sub(op.Sub(span, begins), size)
    none = op.constant(np.zeros(2, np.int64))
    padded = op.Pad(dY, op.Concat(none, begins, none, op.Max(ends, [0]), axis=0))
    padded = op.Slice(padded, [0] * win.rank, span, win.axes)
    return dataclasses.replace(win, pads=(0,) * 2 * win.rank), padded


def _kernel(rule: Rule, W: Value, rank: int) -> tuple[int | None, ...]:
    given = rule.attr("kernel_shape")
    return tuple(given) if given else spatial(rule, W, rank)


def scatter(rule: Rule, win: Window, dY: Value, W: Value, Y: Value, like: Value) -> Value:
    """Return the gradient of the input `like` of a Conv with output Y: each dY, spread over its window.

    This is a ConvTranspose. With stride 1 it is also a Conv with the flipped kernel, and with a kernel of one element a
    matrix product for each sample.
    """
    forms = {"transpose": lambda: transposed(rule, win, dY, W, Y, like)}
    usual = "transpose"
    if _can_flip(rule, win, W):
        forms["flipped"] = lambda: _flipped(rule, win, dY, W, like)
        usual = "flipped" if _flipping_pays(rule, win, W, Y) else usual
    if _is_product(win) and win.group == 1 and rule.static_shape(W) is not None:
        forms["product"] = lambda: _product_with_kernel(rule, win, dY, W, Y, like)
    return rule.choose("X", forms, usual)


def transposed(rule: Rule, win: Window, dY: Value, W: Value, Y: Value, like: Value) -> Value:
    """Return `scatter` as a ConvTranspose."""
    op = rule.op
    if win.pads is None:
        # SAME pads that depend on the run: spread without pads, then cut out the window over the input.
        begins, _ = runtime_pads(rule, win, like, Y, W)
        whole = op.ConvTranspose(dY, W, output_padding=[s - 1 for s in win.strides], group=win.group, **win.attributes)
        return op.Slice(whole, begins, op.Add(begins, op.Shape(like, start=2)), win.axes)
    sizes, counts = spatial(rule, like, win.rank), spatial(rule, Y, win.rank)
    extra, exact = [], True
    for axis, (size, count, stride) in enumerate(zip(sizes, counts, win.strides, strict=True)):
        reach = win.reach(axis)
        if stride == 1:
            extra.append(0)
        elif size is not None and count is not None and reach is not None:
            extra.append(size - ((count - 1) * stride + reach - win.pads[axis] - win.pads[axis + win.rank]))
        else:
            extra.append(stride - 1)
            exact = False
    whole = op.ConvTranspose(
        dY, W, pads=list(win.pads), output_padding=extra if any(extra) else None, group=win.group, **win.attributes
    )
    return whole if exact else op.Slice(whole, [0] * win.rank, op.Shape(like, start=2), win.axes)


def _is_product(win: Window) -> bool:
    """Return whether each window is one element of the image, so that the Conv is a product of matrices."""
    return all(k == 1 for k in win.kernel) and all(s == 1 for s in win.strides) and not any(win.pads or [])


def _can_flip(rule: Rule, win: Window, W: Value) -> bool:
    """Return whether `_flipped` is possible: with stride 1, and pads that do not reach beyond the kernel."""
    if rule.static_shape(W) is None or win.pads is None or any(s != 1 for s in win.strides):
        return False
    reach = [win.reach(axis) for axis in range(win.rank)] * 2
    return all(r is not None and pad <= r - 1 for pad, r in zip(win.pads, reach, strict=True))


def _flipping_pays(rule: Rule, win: Window, W: Value, Y: Value) -> bool:
    """Return whether `_flipped` is faster on ONNX Runtime 1.31 (measured): for groups, large images, many channels."""
    shape, counts = rule.static_shape(W), spatial(rule, Y, win.rank)
    if shape is None or any(c is None for c in counts):
        return False
    image = int(np.prod([c for c in counts if c is not None]))
    size = int(np.prod(shape[2:]))
    return size > 1 and (win.group > 1 or (shape[1] >= shape[0] and image >= 1024))


def _product_with_kernel(rule: Rule, win: Window, dY: Value, W: Value, Y: Value, like: Value) -> Value:
    """Return W^T @ dY for each sample: the gradient of the input where the kernel is one element."""
    op, shape = rule.op, rule.static_shape(W)
    assert shape is not None
    kernel = op.Transpose(op.Reshape(W, list(shape[:2])), perm=[1, 0])
    image = image_size(rule, win, Y)
    batch = extent(rule, Y, 0)
    if isinstance(image, int) and image and not isinstance(batch, int):
        batch = -1  # only the batch is unknown: Reshape finds it without a Shape
    return rule.reshape_like(op.MatMul(kernel, reshape(rule, dY, [batch, shape[0], image])), like)


def _flipped(rule: Rule, win: Window, dY: Value, W: Value, like: Value) -> Value:
    """Return Conv(dY, W flipped and transposed within its groups): the gradient of the input at stride 1."""
    op = rule.op
    shape = rule.static_shape(W)
    assert shape is not None
    assert win.pads is not None
    outer, inner = shape[0] // win.group, shape[1]
    steps = np.full(win.rank, -1, np.int64)
    flipped = op.Slice(W, steps, np.full(win.rank, np.iinfo(np.int64).min), win.axes, steps)
    kernel = list(shape[2:])
    if win.group == 1:
        flipped = op.Transpose(flipped, perm=[1, 0, *win.axes.tolist()])
    elif outer > 1 and inner > 1:
        split = op.Reshape(flipped, [win.group, outer, inner, *kernel])
        split = op.Transpose(split, perm=[0, 2, 1, *range(3, win.rank + 3)])
        flipped = op.Reshape(split, [win.group * inner, outer, *kernel])
    elif outer != inner:
        flipped = op.Reshape(flipped, [win.group * inner, outer, *kernel])
    ends = [win.reach(a) for a in range(win.rank)] * 2
    pads = [(r or 1) - 1 - p for r, p in zip(ends, win.pads, strict=True)]
    return op.Conv(dY, flipped, pads=pads, dilations=list(win.dilations), group=win.group)


def correlate(rule: Rule, win: Window, X: Value, dY: Value, Y: Value, like: Value) -> Value:
    """Return the gradient of the kernel `like` of a Conv from X to Y: dY times the columns of X, over the batch."""
    if any(k is None for k in win.kernel):
        return _textbook(rule, win, X, dY, Y, like)
    size = int(np.prod([k for k in win.kernel if k is not None]))
    outputs, inputs = rule.known_dim(like, 0), rule.known_dim(like, 1)
    counts = [c for c in spatial(rule, Y, win.rank) if c is not None]
    known = win.pads is not None and None not in spatial(rule, X, win.rank) and len(counts) == win.rank
    image = int(np.prod(counts)) if len(counts) == win.rank else None
    forms: dict[str, Callable[[], Value]] = {}

    def product(columns: Callable[[], tuple[Value, bool]], flat: bool) -> Callable[[], Value]:
        return lambda: _product(rule, win, *columns(), dY, Y, like, flat=flat)

    can_flatten = win.group == 1 and None not in (image, outputs) and rule.known_dim(Y, 0) != 1
    # Small images: one product over batch and image together is cheaper than summing a large product per sample.
    shape = "flat" if can_flatten and (image or 0) < (outputs or 0) else "sum"
    large = _is_large(rule, win, Y, inputs, size)
    sources: dict[str, Callable[[], tuple[Value, bool]]] = {}
    if _is_product(win):
        sources["image"] = lambda: (X, False)
    elif not large:
        channels = None if inputs is None else inputs * win.group
        sources["conv"] = lambda: _columns(rule, win, X, channels, size)
        sources["slices"] = lambda: (_taps.columns(rule, win, X, Y), True)
    for name, columns in sources.items():
        forms[f"{name}-sum"] = product(columns, False)
        if can_flatten:
            forms[f"{name}-flat"] = product(columns, True)
    if "slices" in sources and win.rank > 1:
        forms["lines"] = lambda: _by_line(rule, win, X, dY, Y, like)
    if size > 1 and known and inputs is not None:
        forms["taps"] = lambda: _by_tap(rule, win, X, dY, Y, like)
    depthwise = win.group > 1 and size > 1 and inputs == 1 and outputs == win.group
    if depthwise and known:
        forms["sums"] = lambda: rule.reshape_like(_taps.sums(rule, win, X, dY, Y), like)
    forms["textbook"] = lambda: _textbook(rule, win, X, dY, Y, like)
    if rule.portable and "sums" in forms:
        usual = "sums"
    elif large:
        usual = "taps"
    elif "image" in sources:
        usual = f"image-{shape}"
    elif rule.portable and shape == "sum" and "lines" in forms:
        usual = "lines"
    else:
        usual = f"{'slices' if rule.portable else 'conv'}-{shape}"
    return rule.choose("W", forms, usual)


def _product(
    rule: Rule, win: Window, columns: Value, folded: bool, dY: Value, Y: Value, like: Value, *, flat: bool
) -> Value:
    """Return dY times the columns of X: one product over batch and image if `flat`, else the sum over the samples."""
    if not flat:
        return rule.reshape_like(_summed(rule, win, [columns], dY, Y, like)[0], like)
    op, outputs = rule.op, rule.known_dim(like, 0)
    rows, image, batch = _sizes(rule, win, Y, like, parts=1)
    assert isinstance(image, int)
    assert outputs is not None
    whole = image * batch if isinstance(batch, int) and batch >= 0 else -1
    places = win.axes.tolist()
    left = op.Reshape(op.Transpose(dY, perm=[1, 0, *places]), [outputs, whole])
    if folded:
        columns, places = reshape(rule, columns, [batch, rows, image]), [2]
    right = op.Reshape(op.Transpose(columns, perm=[0, *places, 1]), reshape_target(rule, [whole, rows]))
    return rule.reshape_like(op.MatMul(left, right), like)


def _by_line(rule: Rule, win: Window, X: Value, dY: Value, Y: Value, like: Value) -> Value:
    """Return the gradient of the kernel as one product for each tap of its first axis.

    The columns of all taps together are never made: that copy is the largest, and ONNX Runtime makes it on one thread.
    """
    parts = list(_taps.columns_by_line(rule, win, X, Y))
    size = int(np.prod([k for k in win.kernel[1:] if k is not None]))
    target = [extent(rule, like, 0), extent(rule, like, 1), 1, size]
    products = [reshape(rule, p, target) for p in _summed(rule, win, parts, dY, Y, like)]
    return rule.reshape_like(products[0] if len(products) == 1 else rule.op.Concat(*products, axis=2), like)


def _summed(rule: Rule, win: Window, parts: Sequence[Value], dY: Value, Y: Value, like: Value) -> list[Value]:
    """Return dY times each of the parts into which the columns of X are divided, summed over the samples."""
    op, outputs = rule.op, rule.known_dim(like, 0)
    rows, image, batch = _sizes(rule, win, Y, like, parts=len(parts))
    height = outputs // win.group if outputs is not None else op.Div(rule.dim_of(like, 0), [win.group])
    groups, swap = ([], [0, 2, 1]) if win.group == 1 else ([win.group], [0, 1, 3, 2])
    left, found = reshape(rule, dY, [batch, *groups, height, image]), []
    for part in parts:
        right = reshape(rule, part, [batch, *groups, rows, image])
        product = op.MatMul(left, op.Transpose(right, perm=swap))
        found.append(product if batch == 1 else op.ReduceSum(product, [0], keepdims=0))
    return found


def _sizes(
    rule: Rule, win: Window, Y: Value, like: Value, *, parts: int
) -> tuple[int | Value, int | Value, int | Value]:
    """Return the rows of one of so many parts of the columns, the size of the image, and that of the batch."""
    size = int(np.prod([k for k in win.kernel if k is not None])) // parts
    outputs, inputs = rule.known_dim(like, 0), rule.known_dim(like, 1)
    image, batch = image_size(rule, win, Y), extent(rule, Y, 0)
    rows = inputs * size if inputs is not None else rule.op.Mul(rule.dim_of(like, 1), [size])
    if isinstance(image, int) and isinstance(rows, int) and outputs is not None and not isinstance(batch, int):
        batch = -1  # only the batch is unknown: Reshape finds it without a Shape
    return rows, image, batch


def _columns(rule: Rule, win: Window, X: Value, channels: int | None, size: int) -> tuple[Value, bool]:
    """Return the elements of X under each tap of the kernel: [N, C * taps, ...], or folded, [N * C, taps, ...]."""
    op = rule.op
    one_hot = np.eye(size).reshape(size, 1, *(k or 1 for k in win.kernel))
    attributes = {**win.attributes, **win.padding}
    if channels is not None and channels * size * size <= _LARGEST_KERNEL_CONSTANT:
        kernels = op.constant(np.tile(one_hot, (channels, *[1] * (win.rank + 1))), X.dtype)
        return op.Conv(X, kernels, group=channels, **attributes), False
    images = op.Reshape(X, reshape_target(rule, [-1, 1, *(extent(rule, X, int(a)) for a in win.axes)]))
    return op.Conv(images, op.constant(one_hot, X.dtype), **attributes), True


def _is_large(rule: Rule, win: Window, Y: Value, inputs: int | None, size: int) -> bool:
    """Return whether the columns of one batch, or of one sample if its size is not known, need too much memory."""
    counts = spatial(rule, Y, win.rank)
    if size == 1 or win.pads is None or inputs is None or any(c is None for c in counts):
        return False
    image = int(np.prod([c for c in counts if c is not None]))
    return (rule.known_dim(Y, 0) or 1) * inputs * win.group * size * image > _MOST_COLUMNS


def _by_tap(rule: Rule, win: Window, X: Value, dY: Value, Y: Value, like: Value) -> Value:
    """Return the gradient of the kernel as one product for each tap: dY times the elements of X under that tap."""
    op, rank, pads = rule.op, win.rank, win.pads
    assert pads is not None
    counts = np.array(spatial(rule, Y, rank), np.int64)
    batch, groups = extent(rule, Y, 0), win.group
    image, swap = int(np.prod(counts)), [0, 1, 3, 2]
    height = op.Div(rule.dim_of(like, 0), [groups])
    outputs, inputs = rule.known_dim(like, 0), rule.known_dim(like, 1)
    rows: int | Value = rule.dim_of(like, 1) if inputs is None else inputs
    left = reshape(rule, dY, [batch, groups, height if outputs is None else outputs // groups, image])
    if any(pads):
        X = op.Pad(X, np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64))
    strides = np.array(win.strides, np.int64)
    products = []
    for tap in np.ndindex(*(k or 1 for k in win.kernel)):
        begin = np.array(tap, np.int64) * np.array(win.dilations, np.int64)
        under = op.Slice(X, begin, begin + (counts - 1) * strides + 1, win.axes, strides)
        right = reshape(rule, under, [batch, groups, rows, image])
        product = op.ReduceSum(op.MatMul(left, op.Transpose(right, perm=swap)), [0], keepdims=0)
        products.append(op.Unsqueeze(product, [3]))
    return rule.reshape_like(op.Concat(*products, axis=3), like)


def _textbook(rule: Rule, win: Window, X: Value, dY: Value, Y: Value, like: Value) -> Value:
    """Return Conv(X^T, dY^T) with strides and dilations exchanged, cut to the size of the kernel."""
    op = rule.op
    pads: list[int] | None
    if win.pads is None:
        begins, ends = runtime_pads(rule, win, X, Y, like)
        none = op.constant(np.zeros(2, np.int64))
        X, pads = op.Pad(X, op.Concat(none, begins, none, ends, axis=0)), None
    else:
        pads = list(win.pads)
    rest = win.axes.tolist()
    if win.group == 1:
        left = op.Transpose(X, perm=[1, 0, *rest])
    else:
        inner = rule.dim_of(like, 1)
        sizes = [op.Shape(X, start=2)]
        split = reshape(rule, X, [rule.dim_of(X, 0), win.group, inner, *sizes])
        split = op.Transpose(split, perm=[2, 1, 0, *(a + 1 for a in rest)])
        left = reshape(rule, split, [inner, op.Mul(rule.dim_of(X, 0), [win.group]), *sizes])
    right = op.Transpose(dY, perm=[1, 0, *rest])
    product = op.Conv(left, right, strides=list(win.dilations), dilations=list(win.strides), pads=pads, group=win.group)
    return op.Slice(op.Transpose(product, perm=[1, 0, *rest]), [0] * win.rank, op.Shape(like, start=2), win.axes)
