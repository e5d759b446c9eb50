"""Operators that make tensors from shapes, indices and few values."""

from __future__ import annotations

from onward.autodiff.registry import NON_DIFFERENTIABLE, ZERO, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value

declare("Constant", opset=1)
declare("ConstantOfShape", opset=9, input=NON_DIFFERENTIABLE)
declare("EyeLike", opset=9, input=NON_DIFFERENTIABLE)
declare("NonZero", opset=9, X=NON_DIFFERENTIABLE)


@gradient("Range", opset=11, limit=ZERO)
def range_(rule: Rule, doutput: Value) -> Grads:
    """output = start + i delta, so dstart = the sum of doutput and ddelta = the sum of i doutput.

    limit only decides how many elements there are.
    """
    op = rule.op
    dstart = ddelta = None
    if rule.needs("start"):
        dstart = op.ReduceSum(doutput, keepdims=0)
    if rule.needs("delta"):
        count = op.Squeeze(rule.dim_of(rule.output("output"), 0), [0])
        numbers = op.cast(op.Range(0, count, 1), doutput.dtype) if doutput.dtype else op.Range(0, count, 1)
        ddelta = op.ReduceSum(op.Mul(doutput, numbers), keepdims=0)
    return {"start": dstart, "delta": ddelta}


@gradient("OneHot", opset=11, indices=NON_DIFFERENTIABLE, depth=NON_DIFFERENTIABLE)
def one_hot(rule: Rule, doutput: Value) -> Grads:
    """output = values[1] at the indices and values[0] elsewhere, so dvalues sums doutput over each of the two."""
    op, indices, depth, axis = rule.op, rule.input("indices"), rule.input("depth"), rule.attr("axis")
    on = op.OneHot(indices, depth, op.constant([0.0, 1.0], doutput.dtype), axis=axis)
    off = op.OneHot(indices, depth, op.constant([1.0, 0.0], doutput.dtype), axis=axis)
    sums = [op.Reshape(op.ReduceSum(op.Mul(doutput, mask), keepdims=0), [1]) for mask in (off, on)]
    return {"values": op.Concat(*sums, axis=0)}
