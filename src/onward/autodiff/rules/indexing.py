"""Reading and writing at indices: the gradient of a gather is a scatter, and the gradient of a scatter a gather."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, declare, each, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.rules._scatter import (
    as_vector,
    flat,
    positions,
    scatter_elements,
    scatter_rows,
    size_of,
    zeros,
)
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("Gather", opset=13, indices=NON_DIFFERENTIABLE)
def gather(rule: Rule, doutput: Value) -> Grads:
    """output is data at the indices along one axis, so ddata adds each slice of doutput at its index."""
    one_slice = _padded_slice(rule, doutput)
    if one_slice is not None:
        return {"data": one_slice}
    return {"data": scatter_rows(rule, rule.input("data"), rule.input("indices"), doutput, rule.attr("axis"))}


def _padded_slice(rule: Rule, doutput: Value) -> Value | None:
    """Return ddata for one known index (`select` in PyTorch), doutput with zeros around it; None for other indices."""
    index, axis, dims = rule.constant_input("indices"), rule.attr("axis"), rule.dims(rule.input("data"))
    if index is None or index.size != 1 or index.ndim > 1 or dims is None or not isinstance(dims[axis], int):
        return None
    size, position = int(dims[axis]), int(index.reshape(-1)[0])
    position += size if position < 0 else 0
    grad = rule.op.Unsqueeze(doutput, [axis % len(dims)]) if index.ndim == 0 else doutput
    return rule.op.Pad(grad, [position, size - 1 - position], None, [axis % len(dims)])


@gradient("GatherElements", opset=13, indices=NON_DIFFERENTIABLE)
def gather_elements(rule: Rule, doutput: Value) -> Grads:
    """output[i] = data[indices[i]] along axis, so ddata adds each doutput[i] at indices[i]."""
    op, indices = rule.op, rule.input("indices")
    empty = rule.zeros_like(rule.input("data"))
    return {"data": op.ScatterElements(empty, indices, doutput, axis=rule.attr("axis"), reduction="add")}


@gradient("GatherND", opset=13, indices=NON_DIFFERENTIABLE)
def gather_nd(rule: Rule, doutput: Value) -> Grads:
    """output[i] = data[indices[i]], a slice, so ddata adds each slice of doutput at its index."""
    return {"data": _add_nd(rule, rule.input("data"), rule.input("indices"), doutput, rule.attr("batch_dims"))}


def _add_nd(rule: Rule, data: Value, indices: Value, grad: Value, batch_dims: int) -> Value:
    """Return zeros like `data` with each slice of `grad` added at its index, as ScatterND(add) would.

    GatherND of the row numbers gives for each slice the row it came from.
    """
    op = rule.op
    dims, rank = rule.dims(indices), rule.rank(data)
    depth = None if dims is None else dims[-1]
    if not isinstance(depth, int) or rank is None:
        # The number of axes of an index is known only at run time: number every element instead of every slice.
        source = op.GatherND(positions(rule, data), indices, batch_dims=batch_dims)
        return scatter_elements(rule, data, source, grad)
    outer = batch_dims + depth
    sizes = rule.static_shape(data)
    if sizes is not None:
        lead: Value = op.constant(np.array(sizes[:outer], np.int64))
        count: Value = op.constant(np.array(int(np.prod(sizes[:outer])), np.int64))
    else:
        lead = op.Shape(data, start=0, end=outer)
        count = op.ReduceProd(lead, keepdims=0)
    numbers = op.Range(0, count, 1)
    rows = op.GatherND(op.Reshape(numbers, lead, allowzero=1), indices, batch_dims=batch_dims)
    if dims is not None and all(isinstance(d, int) for d in dims):
        rows.shape = ir.Shape([d for d in dims[:-1] if isinstance(d, int)])
    if outer == rank:
        empty = zeros(rule, as_vector(rule, count), grad.dtype)
        added = op.ScatterElements(empty, flat(rule, rows), flat(rule, grad), axis=0, reduction="add")
        return rule.reshape_like(added, data)
    # All axes of a slice as one: [rows, inner].
    inner = _product(rule, data, outer)
    shape = op.Concat(as_vector(rule, size_of(rule, rows)), inner, axis=0)
    column = op.Expand(op.Reshape(rows, [-1, 1]), shape)
    empty = zeros(rule, op.Concat(as_vector(rule, count), inner, axis=0), grad.dtype)
    added = op.ScatterElements(empty, column, op.Reshape(grad, shape, allowzero=1), axis=0, reduction="add")
    return rule.reshape_like(added, data)


def _product(rule: Rule, value: Value, start: int) -> Value:
    """Return the product of the dimensions from `start` on, as a vector of one."""
    known = rule.known_size(value, range(start, rule.rank(value) or 0))
    if known is not None:
        return rule.op.constant([known])
    return rule.op.ReduceProd(rule.op.Shape(value, start=start), keepdims=1)


@gradient("Scatter", opset=9, indices=NON_DIFFERENTIABLE)
def scatter(rule: Rule, doutput: Value) -> Grads:
    """output is data with updates written at the indices, so ddata is 0 there and dupdates is doutput there."""
    return _scatter_along_axis(rule, doutput, "none")


@gradient("ScatterElements", opset=18, indices=NON_DIFFERENTIABLE)
def scatter_elements_(rule: Rule, doutput: Value) -> Grads:
    """output is data with updates written, added, multiplied or compared in at the indices along axis."""
    return _scatter_along_axis(rule, doutput, rule.attr("reduction"))


def _scatter_along_axis(rule: Rule, doutput: Value, reduction: str) -> Grads:
    op, indices, axis = rule.op, rule.input("indices"), rule.attr("axis")

    def write(target: Value, updates: Value, reduction: str | None) -> Value:
        return op.ScatterElements(target, indices, updates, axis=axis, reduction=reduction)

    def read(source: Value) -> Value:
        return op.GatherElements(source, indices, axis=axis)

    return _scattered(rule, doutput, reduction, write, read)


@gradient("ScatterND", opset=18, indices=NON_DIFFERENTIABLE)
def scatter_nd(rule: Rule, doutput: Value) -> Grads:
    """output is data with slices of updates written, added, multiplied or compared in at the indices."""
    op, data, indices, reduction = rule.op, rule.input("data"), rule.input("indices"), rule.attr("reduction")
    source: list[Value] = []

    def write(target: Value, updates: Value, reduction: str | None) -> Value:
        if reduction is None:
            return op.ScatterND(target, indices, updates)
        if not source:
            source.append(op.Reshape(op.GatherND(positions(rule, data), indices), [-1]))
        written = op.ScatterElements(flat(rule, target), source[0], flat(rule, updates), axis=0, reduction=reduction)
        return rule.reshape_like(written, data)

    def read(value: Value) -> Value:
        return op.GatherND(value, indices)

    return _scattered(rule, doutput, reduction, write, read)


def _scattered(
    rule: Rule,
    doutput: Value,
    reduction: str,
    write: Callable[[Value, Value, str | None], Value],
    read: Callable[[Value], Value],
) -> Grads:
    """Return ddata and dupdates, given functions that write updates into a tensor and read where they were written.

    none: ddata is 0 where something was written. An element written twice gives its gradient to both updates, as in
    PyTorch. add: both are doutput. mul: the product of all other factors. max, min: the winner has the gradient; equal
    ones share it, as in PyTorch's scatter_reduce.
    """
    op, data, updates, output = rule.op, rule.input("data"), rule.input("updates"), rule.output("output")
    by_data, by_updates = rule.needs("data"), rule.needs("updates")
    if reduction == "none":
        return {
            "data": write(doutput, rule.zeros_like(updates), None) if by_data else None,
            "updates": read(doutput) if by_updates else None,
        }
    if reduction == "add":
        return {"data": doutput, "updates": read(doutput) if by_updates else None}
    if reduction == "mul":
        ddata = dupdates = None
        if by_data:
            ddata = op.Mul(doutput, write(rule.full_like(data, 1.0), updates, "mul"))
        if by_updates:
            # The product of the other factors, by division. Zeros are counted separately to avoid 0 / 0.
            is_zero = op.Equal(updates, 0.0)
            nonzero = op.Where(is_zero, 1.0, updates)
            zero = op.Cast(is_zero, to=updates.dtype or ir.DataType.FLOAT)
            product = read(op.Mul(op.Mul(doutput, data), write(rule.full_like(data, 1.0), nonzero, "mul")))
            other_zeros = op.Sub(read(write(rule.zeros_like(data), zero, "add")), zero)
            dupdates = op.Where(op.Greater(other_zeros, 0.0), 0.0, op.Div(product, nonzero))
        return {"data": ddata, "updates": dupdates}
    dtype = data.dtype or ir.DataType.FLOAT
    data_wins = op.Cast(op.Equal(data, output), to=dtype)
    update_wins = op.Cast(op.Equal(updates, read(output)), to=dtype)
    share = op.Div(doutput, write(data_wins, update_wins, "add"))
    return {
        "data": op.Mul(data_wins, share) if by_data else None,
        "updates": op.Mul(update_wins, read(share)) if by_updates else None,
    }


@gradient("TensorScatter", opset=24, write_indices=NON_DIFFERENTIABLE)
def tensor_scatter(rule: Rule, dpresent_cache: Value) -> Grads:
    """present_cache is past_cache with update written from write_indices on, so dpast_cache is 0 there.

    dupdate is dpresent_cache at the places written to.
    """
    op, update, start = rule.op, rule.input("update"), rule.optional_input("write_indices")
    axis, mode = rule.attr("axis"), rule.attr("mode")
    dpast = dupdate = None
    if rule.needs("past_cache"):
        dpast = op.TensorScatter(dpresent_cache, rule.zeros_like(update), start, axis=axis, mode=mode)
    if rule.needs("update"):
        rank = rule.rank(update)
        if rank is None:
            raise Unsupported("the rank of `update` is not known; give its shape")
        axis = axis % rank
        steps = op.Range(0, op.Squeeze(rule.dim_of(update, axis), [0]), 1)
        index = op.Reshape(steps, np.array([-1] + [1] * (rank - axis - 1), np.int64))
        if start is not None:
            index = op.Add(index, op.Reshape(start, np.array([-1] + [1] * (rank - 1), np.int64)))
        if mode == "circular":
            index = op.Mod(index, rule.dim_of(dpresent_cache, axis))
        dupdate = op.GatherElements(dpresent_cache, op.Expand(index, rule.shape_of(update)), axis=axis)
    return {"past_cache": dpast, "update": dupdate}


@gradient("Compress", opset=11, condition=NON_DIFFERENTIABLE)
def compress(rule: Rule, doutput: Value) -> Grads:
    """output is the slices (elements, without axis) of input that condition chooses; ddata is 0 at the others."""
    op, data, condition, axis = rule.op, rule.input("input"), rule.input("condition"), rule.attr("axis")
    if axis is None:
        source = op.Compress(op.Range(0, size_of(rule, data), 1), condition, axis=0)
        return {"input": scatter_elements(rule, data, source, doutput)}
    rows = op.Compress(op.Range(0, op.Squeeze(rule.dim_of(data, axis), [0]), 1), condition, axis=0)
    rows.shape = ir.Shape([None])
    return {"input": scatter_rows(rule, data, rows, doutput, axis, distinct=True)}


@gradient("TopK", opset=11, K=NON_DIFFERENTIABLE)
def top_k(rule: Rule, dValues: Value) -> Grads:
    """Values = X at Indices, so dX is dValues there and 0 elsewhere. Equal values: those that Indices names."""
    empty = rule.zeros_like(rule.input("X"))
    return {"X": rule.op.ScatterElements(empty, rule.request_output("Indices"), dValues, axis=rule.attr("axis"))}


@gradient("Unique", opset=11)
def unique(rule: Rule, dY: Value) -> Grads:
    """Y is X without repetitions, so dX is dY at the first occurrence of each value and 0 elsewhere."""
    X, indices, axis = rule.input("X"), rule.request_output("indices"), rule.attr("axis")
    if axis is None:
        return {"X": scatter_elements(rule, X, indices, dY)}
    indices.shape = ir.Shape([None]) if indices.shape is None else indices.shape
    return {"X": scatter_rows(rule, X, indices, dY, axis, distinct=True)}


_NMS = each(NON_DIFFERENTIABLE, "boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold")
declare("NonMaxSuppression", opset=10, **_NMS)
