"""Reductions: the gradient is spread over the reduced axes, if possible by broadcasting."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import NON_DIFFERENTIABLE, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value


def no_axes(rule: Rule) -> bool:
    """Return whether the node certainly names no axes."""
    known = rule.constant_input("axes")
    return rule.optional_input("axes") is None or (known is not None and known.size == 0)


def is_elementwise(rule: Rule) -> bool:
    """Return whether the node certainly reduces nothing: no axes, and noop_with_empty_axes."""
    return no_axes(rule) and bool(rule.attr("noop_with_empty_axes", 0))


def spread(rule: Rule, grad: Value) -> Value:
    """Return `grad`, which has the shape of the reduced output, in a form that broadcasts to the shape of the data.

    If all axes are reduced without keepdims, it is a scalar, which broadcasts already.
    """
    if rule.attr("keepdims", 1) or no_axes(rule):
        return grad
    return rule.op.Unsqueeze(grad, rule.input("axes"))


def again(rule: Rule, op_type: str, value: Value) -> Value:
    """Return `value`, which has the shape of the data, reduced over the same axes with keepdims."""
    noop = rule.attr("noop_with_empty_axes", 0) or None
    return rule.op.call(op_type, [value, rule.optional_input("axes")], keepdims=1, noop_with_empty_axes=noop)[0]


@gradient("ReduceSum", opset=13, axes=NON_DIFFERENTIABLE)
def reduce_sum(rule: Rule, dreduced: Value) -> Grads:
    """reduced = the sum over axes, so ddata = dreduced, expanded."""
    return {"data": _expand(rule, spread(rule, dreduced))}


@gradient("ReduceMean", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_mean(rule: Rule, dreduced: Value) -> Grads:
    """reduced = the sum over axes / n, so ddata = dreduced / n, expanded."""
    if is_elementwise(rule):
        return {"data": dreduced}
    return {"data": _expand(rule, _divide_by_count(rule, spread(rule, dreduced)))}


def _expand(rule: Rule, grad: Value) -> Value:
    if is_elementwise(rule):
        return grad
    out = rule.op.Expand(grad, rule.shape_of(rule.input("data")))
    out.shape = rule.input("data").shape
    return out


def _divide_by_count(rule: Rule, grad: Value) -> Value:
    """Return `grad` divided by the number of elements that went into each mean."""
    op = rule.op
    dtype = grad.dtype or ir.DataType.FLOAT
    narrow = dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    count = _known_count(rule)
    if count is not None:
        # In half precision a count above 65504 is infinite; its reciprocal is not 0.
        return op.Mul(grad, 1.0 / max(count, 1)) if narrow else op.Div(grad, float(count))
    number = _computed_count(rule)
    if narrow:
        return op.Mul(grad, op.cast(op.Reciprocal(op.cast(number, ir.DataType.FLOAT)), dtype))
    return op.Div(grad, op.cast(number, dtype))


def _computed_count(rule: Rule) -> Value:
    op, data = rule.op, rule.input("data")
    if no_axes(rule):
        return op.Size(data)
    dims, axes = rule.dims(data), rule.constant_input("axes")
    if dims is not None and axes is not None and axes.size == 1:
        return rule.dim_of(data, int(axes.reshape(-1)[0]) % len(dims))
    # An empty result has no elements to divide; Max keeps the integer division defined.
    return op.Div(op.Size(data), op.Max(op.Size(rule.output("reduced")), 1))


def _known_count(rule: Rule) -> int | None:
    dims = rule.dims(rule.input("data"))
    if dims is None:
        return None
    axes = rule.constant_input("axes")
    if axes is None and rule.optional_input("axes") is not None:
        return None
    chosen = range(len(dims)) if axes is None or axes.size == 0 else [int(a) for a in axes.reshape(-1)]
    return rule.known_size(rule.input("data"), chosen)


@gradient("ReduceMax", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_max(rule: Rule, dreduced: Value) -> Grads:
    """reduced = the maximum over axes; the elements equal to it share dreduced evenly."""
    return {"data": _share_among_equal(rule, dreduced)}


@gradient("ReduceMin", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_min(rule: Rule, dreduced: Value) -> Grads:
    """reduced = the minimum over axes; the elements equal to it share dreduced evenly."""
    return {"data": _share_among_equal(rule, dreduced)}


def _share_among_equal(rule: Rule, grad: Value) -> Value:
    # Ties: equal shares, as torch.amax does.
    if is_elementwise(rule):
        return grad
    op = rule.op
    assert grad.dtype is not None
    chosen = op.cast(op.Equal(rule.input("data"), spread(rule, rule.output("reduced"))), grad.dtype)
    return op.Mul(chosen, op.Div(spread(rule, grad), again(rule, "ReduceSum", chosen)))


@gradient("ReduceProd", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_prod(rule: Rule, dreduced: Value) -> Grads:
    """reduced = the product over axes, so ddata = dreduced * the product of all other elements."""
    if is_elementwise(rule):
        return {"data": dreduced}
    op, data = rule.op, rule.input("data")
    assert data.dtype is not None
    # P' is the product with ones instead of zeros, so it can be divided. The product of the others is P' / data times a
    # factor for the zeros among the others: 1 if there is none, that element itself if there is one (which keeps second
    # derivatives right), and 0 if there are more.
    zero = op.cast(op.Equal(data, 0.0), data.dtype)
    filled = op.Add(data, zero)
    product = again(rule, "ReduceProd", filled)
    others = op.Sub(again(rule, "ReduceSum", zero), zero)
    zeros = op.Mul(data, zero)
    only = op.Mul(op.Sub(again(rule, "ReduceSum", zeros), zeros), op.cast(op.Equal(others, 1.0), data.dtype))
    rest = op.Add(op.cast(op.Equal(others, 0.0), data.dtype), only)
    return {"data": op.Mul(spread(rule, dreduced), op.Mul(op.Div(product, filled), rest))}


@gradient("ReduceL1", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_l1(rule: Rule, dreduced: Value) -> Grads:
    """reduced = sum |data|, so ddata = dreduced * sign(data)."""
    return {"data": rule.op.Mul(spread(rule, dreduced), rule.op.Sign(rule.input("data")))}


@gradient("ReduceL2", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_l2(rule: Rule, dreduced: Value) -> Grads:
    """reduced = √(sum data²), so ddata = dreduced * data / reduced."""
    op, norm = rule.op, rule.output("reduced")
    assert norm.dtype is not None
    # The norm of zeros: slope 0, as PyTorch does. There the norm is replaced by 1.
    safe = op.Add(norm, op.cast(op.Equal(norm, 0.0), norm.dtype))
    return {"data": op.Mul(spread(rule, op.Div(dreduced, safe)), rule.input("data"))}


@gradient("ReduceSumSquare", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_sum_square(rule: Rule, dreduced: Value) -> Grads:
    """reduced = sum data², so ddata = 2 * dreduced * data."""
    return {"data": rule.op.Mul(spread(rule, rule.op.Mul(dreduced, 2.0)), rule.input("data"))}


@gradient("ReduceLogSum", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_log_sum(rule: Rule, dreduced: Value) -> Grads:
    """reduced = log(sum data), so ddata = dreduced / sum data = dreduced * e^-reduced, expanded."""
    op = rule.op
    grad = op.Mul(dreduced, op.Exp(op.Neg(rule.output("reduced"))))
    return {"data": _expand(rule, spread(rule, grad))}


@gradient("ReduceLogSumExp", opset=18, axes=NON_DIFFERENTIABLE)
def reduce_log_sum_exp(rule: Rule, dreduced: Value) -> Grads:
    """reduced = log(sum e^data), so ddata = dreduced * e^(data - reduced)."""
    op = rule.op
    part = op.Exp(op.Sub(rule.input("data"), spread(rule, rule.output("reduced"))))
    return {"data": op.Mul(spread(rule, dreduced), part)}


declare("ArgMax", opset=13, data=NON_DIFFERENTIABLE)
declare("ArgMin", opset=13, data=NON_DIFFERENTIABLE)
