"""Slice, Pad and CenterCropPad: cutting off is undone by padding with zeros, and padding by cutting off."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import NON_DIFFERENTIABLE, each, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._scatter import positions, scatter_elements
from onward.autodiff.rules._windows import extent, reshape_target
from onward.autodiff.types import Grads
from onward.graph.builder import Value

_END = np.iinfo(np.int64).max


@gradient("Slice", opset=13, **each(NON_DIFFERENTIABLE, "starts", "ends", "axes", "steps"))
def slice_(rule: Rule, doutput: Value) -> Grads:
    """output is a part of data, so ddata is doutput with zeros around it.

    With steps other than 1, each element of data looks up its place in doutput, or a zero appended to it.
    """
    op, data = rule.op, rule.input("data")
    steps = rule.constant_input("steps")
    if rule.optional_input("steps") is not None and (steps is None or any(s != 1 for s in steps)):
        return {"data": _look_up(rule, data, doutput)}
    axes, starts = _axes(rule), rule.constant_input("starts")
    pads = None if axes is None else _known_pads(rule, data, axes)
    if axes is not None and pads is not None:
        return {"data": op.Pad(doutput, pads, None, _all_axes(rule, data, axes)) if any(pads) else doutput}
    chosen = rule.optional_input("axes") if axes is None else op.constant(np.array(axes, np.int64))
    if chosen is None:
        # Without `axes`, a Slice takes the first axes, one for each start.
        chosen = op.Range(0, op.Size(rule.input("starts")), 1)
    size, length = op.Gather(op.Shape(data), chosen), op.Gather(op.Shape(doutput), chosen)
    first = op.cast(rule.input("starts"), ir.DataType.INT64)
    begins = op.Min(first, size)
    if starts is None or any(s < 0 for s in starts):
        begins = op.Where(op.Less(first, 0), op.Max(op.Add(first, size), 0), begins)
    return {"data": op.Pad(doutput, op.Concat(begins, op.Sub(op.Sub(size, begins), length), axis=0), None, chosen)}


def _known_pads(rule: Rule, data: Value, axes: list[int]) -> list[int] | None:
    """Return what the Slice cuts off before and behind on each axis, or None if it is not known before the run."""
    starts, ends = rule.constant_input("starts"), rule.constant_input("ends")
    sizes = [n for n in (rule.known_dim(data, axis) for axis in axes) if n is not None]
    if starts is None or ends is None or len(sizes) < len(axes):
        return None
    cuts = [slice(int(s), int(e)).indices(n) for s, e, n in zip(starts, ends, sizes, strict=True)]
    return [c[0] for c in cuts] + [n - max(c[1], c[0]) for c, n in zip(cuts, sizes, strict=True)]


def _look_up(rule: Rule, data: Value, doutput: Value) -> Value:
    """Return the gradient of a Slice with any steps, one axis after the other."""
    op, axes = rule.op, _axes(rule)
    if axes is None:
        # The axes are known only at run time: follow every element instead of every index.
        inputs = [rule.optional_input(n) for n in ("starts", "ends", "axes", "steps")]
        return scatter_elements(rule, data, op.Slice(positions(rule, data), *inputs), doutput)
    grad = doutput
    for position, axis in enumerate(axes):
        known = [rule.constant_input(n) for n in ("starts", "ends", "steps")]
        size = rule.known_dim(data, axis)
        end = np.array([axis], np.int64)
        values = [int(k[position]) for k in known if k is not None]
        if size is not None and len(values) == 3:
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
    """Return the axes of a Slice, or None if they are known only at run time."""
    if rule.optional_input("axes") is not None:
        known = rule.constant_input("axes")
        return None if known is None else [int(a) for a in known]
    count = rule.known_dim(rule.input("starts"), 0)
    return None if count is None else list(range(count))


def _all_axes(rule: Rule, data: Value, axes: list[int]) -> Value | None:
    """Return the `axes` input of a Pad; None if they are all the axes in order."""
    return None if axes == list(range(rule.rank(data) or -1)) else rule.op.constant(np.array(axes, np.int64))


@gradient("Pad", opset=18, pads=NON_DIFFERENTIABLE, axes=NON_DIFFERENTIABLE)
def pad(rule: Rule, doutput: Value) -> Grads:
    """output is data with a border, so ddata is doutput with the border cut off; negative pads the other way round.

    dconstant_value sums doutput over the border. The other modes copy elements of data into the border; the gradient of
    each copy is added to that of its element.
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
    """Return the gradient of a Pad whose border copies data: the gradient of the border is added to the originals.

    It goes through one axis after the other, so that only the border is scattered.
    """
    op, pads, rank = rule.op, rule.constant_input("pads"), rule.rank(data)
    axes = rule.constant_input("axes") if rule.optional_input("axes") is not None else np.arange(rank or 0)
    if pads is None or axes is None or rank is None or any(p < 0 for p in pads):
        # Follow every element: the pads are known only at run time, or some are negative.
        source = op.Pad(positions(rule, data), rule.input("pads"), None, rule.optional_input("axes"), mode=mode)
        return scatter_elements(rule, data, source, doutput)
    sizes = list(rule.dims(doutput) or [None] * rank)
    grad = doutput
    for position, given in enumerate(axes):
        axis, before, after = int(given) % rank, int(pads[position]), int(pads[position + len(axes)])
        if before or after:
            grad = _fold_axis(rule, data, grad, axis, (before, after), sizes, mode)
            sizes[axis] = rule.known_dim(data, axis)
    return grad


def _fold_axis(
    rule: Rule, data: Value, grad: Value, axis: int, pads: tuple[int, int], sizes: list[int | str | None], mode: str
) -> Value:
    """Return `grad`, which has the dimensions `sizes`, with the border of one axis added to the originals."""
    op, (before, after), size = rule.op, pads, rule.known_dim(data, axis)
    ends = [([0], [before])] * (before > 0) + [([-after], [_END])] * (after > 0)
    border = _joined(rule, [op.Slice(grad, start, end, [axis]) for start, end in ends], axis)
    if size is not None:
        copied = np.pad(np.arange(size), pads, mode=mode)  # type: ignore[call-overload]  # mode is a name
        source = op.constant(np.concatenate([copied[:before], copied[before + size :]]).astype(np.int64))
    else:
        numbers = op.Range(0, op.Squeeze(rule.dim_of(data, axis), [0]), 1)
        places = op.Pad(numbers, np.array(pads, np.int64), mode=mode)
        source = _joined(rule, [op.Slice(places, start, end) for start, end in ends], 0)
    shape = [*sizes[:axis], before + after, *sizes[axis + 1 :]]
    known = all(isinstance(s, int) for s in shape)
    target = op.constant(np.array(shape, np.int64)) if known else op.Shape(border)
    column = op.Expand(op.Reshape(source, [-1] + [1] * (len(sizes) - axis - 1)), target)
    center = op.Slice(grad, [before], [-after if after else _END], [axis])
    return op.ScatterElements(center, column, border, axis=axis, reduction="add")


def _joined(rule: Rule, parts: list[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else rule.op.Concat(*parts, axis=axis)


@gradient("CenterCropPad", opset=18, shape=NON_DIFFERENTIABLE)
def center_crop_pad(rule: Rule, doutput_data: Value) -> Grads:
    """output_data is data cropped or padded about its centre, so dinput_data is doutput_data padded or cropped back."""
    op, data, axes = rule.op, rule.input("input_data"), rule.attr("axes")
    if axes is None:
        return {"input_data": op.CenterCropPad(doutput_data, rule.shape_of(data))}
    shape = reshape_target(rule, [extent(rule, data, axis) for axis in axes])
    return {"input_data": op.CenterCropPad(doutput_data, shape, axes=axes)}
