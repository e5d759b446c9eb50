"""Slice, Pad and CenterCropPad: cutting off is undone by padding with zeros, and padding by cutting off."""

from __future__ import annotations

import numpy as np

from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._scatter import positions, scatter_elements
from onward.autodiff.types import Grads
from onward.graph.builder import Value

_END = np.iinfo(np.int64).max


@gradient(
    "Slice",
    opset=13,
    starts=NON_DIFFERENTIABLE,
    ends=NON_DIFFERENTIABLE,
    axes=NON_DIFFERENTIABLE,
    steps=NON_DIFFERENTIABLE,
)
def slice_(rule: Rule, doutput: Value) -> Grads:
    """output is a part of data, so ddata is doutput with zeros around it.

    With other steps than 1, each element of data looks up its place in doutput, or a zero behind the end.
    """
    op, data = rule.op, rule.input("data")
    steps = rule.constant_input("steps")
    if rule.optional_input("steps") is not None and (steps is None or any(s != 1 for s in steps)):
        return {"data": _look_up(rule, data, doutput)}
    axes, dims = _axes(rule), rule.dims(data)
    starts, ends = rule.constant_input("starts"), rule.constant_input("ends")
    if starts is not None and ends is not None and axes is not None and dims is not None:
        sizes = [dims[a] for a in axes]
        known = [s for s in sizes if isinstance(s, int)]
        if len(known) == len(sizes):
            cuts = [slice(int(s), int(e)).indices(n) for s, e, n in zip(starts, ends, known, strict=True)]
            begin = [c[0] for c in cuts]
            end = [n - max(c[1], c[0]) for c, n in zip(cuts, known, strict=True)]
            if not any(begin) and not any(end):
                return {"data": doutput}
            return {"data": op.Pad(doutput, [*begin, *end], None, _all_axes(rule, data, axes))}
    chosen = rule.optional_input("axes") if axes is None else op.constant(np.array(axes, np.int64))
    if chosen is None:
        # Without axes the first ones are sliced, as many as there are starts: fewer than data has, it may be.
        chosen = op.Range(0, op.Size(rule.input("starts")), 1)
    size, length = op.Gather(op.Shape(data), chosen), op.Gather(op.Shape(doutput), chosen)
    first = op.Cast(rule.input("starts"), to=7) if rule.input("starts").dtype != size.dtype else rule.input("starts")
    from_start = op.Min(first, size)
    begins = (
        from_start
        if starts is not None and all(s >= 0 for s in starts)
        else op.Where(op.Less(first, 0), op.Max(op.Add(first, size), 0), from_start)
    )
    pads = op.Concat(begins, op.Sub(op.Sub(size, begins), length), axis=0)
    return {"data": op.Pad(doutput, pads, None, chosen)}


def _look_up(rule: Rule, data: Value, doutput: Value) -> Value:
    """Return the gradient of a Slice with any steps, one axis after the other."""
    op, axes = rule.op, _axes(rule)
    if axes is None:
        # Which axes are sliced is known at run time only: follow every element instead of every index.
        inputs = [rule.optional_input(n) for n in ("starts", "ends", "axes", "steps")]
        return scatter_elements(rule, data, op.Slice(positions(rule, data), *inputs), doutput)
    dims, grad = rule.dims(data), doutput
    for position, axis in enumerate(axes):
        known = [rule.constant_input(n) for n in ("starts", "ends", "steps")]
        size = None if dims is None else dims[axis]
        end = np.array([axis], np.int64)
        values = [int(k[position]) for k in known if k is not None]
        if isinstance(size, int) and len(values) == 3:
            start, stop, step = values
            chosen = np.arange(size)[start:stop:step]
            place = np.full(size, len(chosen), np.int64)
            place[chosen] = np.arange(len(chosen))
            if len(chosen) == size and np.array_equal(place, np.arange(size)):
                continue
            if len(chosen) < size:
                grad = op.Pad(grad, np.array([0, 1], np.int64), None, end)
            grad = op.Gather(grad, place, axis=axis)
            continue
        length = op.Squeeze(rule.dim_of(data, axis), [0])
        limits = [op.Slice(rule.input(n), [position], [position + 1]) for n in ("starts", "ends", "steps")]
        found = op.Slice(op.Range(0, length, 1), limits[0], limits[1], [0], limits[2])
        count = op.Size(found)
        nowhere = op.Expand(count, op.Reshape(length, [1]))
        lookup = op.ScatterElements(nowhere, found, op.Range(0, count, 1), axis=0)
        grad = op.Gather(op.Pad(grad, np.array([0, 1], np.int64), None, end), lookup, axis=axis)
    return grad


def _axes(rule: Rule) -> list[int] | None:
    """Return the axes of a Slice where they are known."""
    if rule.optional_input("axes") is not None:
        known = rule.constant_input("axes")
        return None if known is None else [int(a) for a in known]
    dims = rule.dims(rule.input("starts"))
    return list(range(dims[0])) if dims is not None and isinstance(dims[0], int) else None


def _all_axes(rule: Rule, data: Value, axes: list[int]) -> Value | None:
    """Return the `axes` input of a Pad; None if they are all the axes in order."""
    return None if axes == list(range(rule.rank(data) or -1)) else rule.op.constant(np.array(axes, np.int64))


@gradient("Pad", opset=18, pads=NON_DIFFERENTIABLE, axes=NON_DIFFERENTIABLE)
def pad(rule: Rule, doutput: Value) -> Grads:
    """output is data with a border, so ddata is doutput with the border cut off; negative pads the other way round.

    dconstant_value sums doutput over the border. The other modes copy elements of data into the border, and each copy
    adds to its element's gradient.
    """
    op, data, pads, axes = rule.op, rule.input("data"), rule.input("pads"), rule.optional_input("axes")
    mode = rule.attr("mode")
    if mode != "constant":
        folded = _fold_border(rule, data, doutput, mode) if rule.needs("data") else None
        return {"data": folded, "constant_value": None}
    known = rule.constant_input("pads")
    ddata = dvalue = None
    if rule.needs("data"):
        ddata = op.Pad(doutput, op.Neg(pads) if known is None else -known, None, axes)
    if rule.needs("constant_value"):
        value = rule.input("constant_value")
        border = op.Pad(rule.zeros_like(data), pads, 1.0, axes)
        dvalue = op.ReduceSum(op.Mul(doutput, border), keepdims=0)
        if rule.rank(value) != 0:
            dvalue = rule.reshape_like(dvalue, value)
    return {"data": ddata, "constant_value": dvalue}


def _fold_border(rule: Rule, data: Value, doutput: Value, mode: str) -> Value:
    """Return the gradient of a Pad with copies of data as its border: the border is added where it came from.

    One axis after the other, so that only the border is scattered.
    """
    op, pads, rank = rule.op, rule.constant_input("pads"), rule.rank(data)
    axes = rule.constant_input("axes") if rule.optional_input("axes") is not None else np.arange(rank or 0)
    if pads is None or axes is None or rank is None or any(p < 0 for p in pads):
        # Follow every element: the pads are known at run time only, or cut some off.
        source = op.Pad(positions(rule, data), rule.input("pads"), None, rule.optional_input("axes"), mode=mode)
        return scatter_elements(rule, data, source, doutput)
    grad = doutput
    shape = rule.dims(doutput)
    sizes: list[int | str | None] = [None] * rank if shape is None else list(shape)
    known = rule.dims(data)
    assert known is not None
    for position, given in enumerate(axes):
        axis, before, after = int(given) % rank, int(pads[position]), int(pads[position + len(axes)])
        if before == after == 0:
            continue
        ends = [([0], [before])] * (before > 0) + [([-after], [_END])] * (after > 0)
        parts = [op.Slice(grad, start, end, [axis]) for start, end in ends]
        border = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)
        size = known[axis]
        if isinstance(size, int):
            copied = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]  # mode is a name
            source = op.constant(np.concatenate([copied[:before], copied[before + size :]]).astype(np.int64))
        else:
            numbers = op.Range(0, op.Squeeze(rule.dim_of(data, axis), [0]), 1)
            places = op.Pad(numbers, np.array([before, after], np.int64), mode=mode)
            found = [op.Slice(places, start, end) for start, end in ends]
            source = found[0] if len(found) == 1 else op.Concat(*found, axis=0)
        sizes[axis] = before + after
        exact = [s for s in sizes if isinstance(s, int)]
        target = op.constant(np.array(exact, np.int64)) if len(exact) == rank else op.Shape(border)
        column = op.Expand(op.Reshape(source, np.array([-1] + [1] * (rank - axis - 1), np.int64)), target)
        sizes[axis] = size
        center = op.Slice(grad, [before], [-after if after else _END], [axis])
        grad = op.ScatterElements(center, column, border, axis=axis, reduction="add")
    return grad


@gradient("CenterCropPad", opset=18, shape=NON_DIFFERENTIABLE)
def center_crop_pad(rule: Rule, doutput_data: Value) -> Grads:
    """output_data is data cropped or padded about its centre, so dinput_data is the opposite, by the same rule."""
    op, data, axes = rule.op, rule.input("input_data"), rule.attr("axes")
    if axes is None:
        return {"input_data": op.CenterCropPad(doutput_data, rule.shape_of(data))}
    dims = rule.dims(data)
    known = [] if dims is None else [d for a in axes if isinstance(d := dims[a], int)]
    if len(known) == len(axes):
        shape = op.constant(np.array(known, np.int64))
    else:
        shape = op.Concat(*(rule.dim_of(data, a) for a in axes), axis=0)
    return {"input_data": op.CenterCropPad(doutput_data, shape, axes=axes)}
