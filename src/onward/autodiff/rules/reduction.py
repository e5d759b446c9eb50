"""Reductions: the gradient is spread back over the reduced axes."""

from __future__ import annotations

import numpy as np

from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.model.builder import Value


def spread(rule: Rule, grad: Value, data: Value) -> Value:
    """Return `grad`, the gradient of a reduction of `data`, with the reduced axes there as ones (keepdims=1)."""
    if rule.attr("keepdims", 1):
        return grad
    op, axes = rule.op, rule.optional_input("axes")
    known = rule.constant_input("axes")
    if axes is None or (known is not None and known.size == 0):
        if axes is not None and rule.attr("noop_with_empty_axes", 0):
            return grad
        rank = rule.rank(data)
        shape = op.Expand(1, op.Shape(op.Shape(data))) if rank is None else np.ones(rank, np.int64)
        return op.Reshape(grad, shape)
    return op.Unsqueeze(grad, axes)


@gradient("ReduceSum", opset=13, axes=NON_DIFFERENTIABLE)
def reduce_sum(rule: Rule, dreduced: Value) -> Grads:
    """reduced = the sum over axes, so ddata = dreduced, expanded."""
    data = rule.input("data")
    return {"data": rule.op.Expand(spread(rule, dreduced, data), rule.shape_of(data))}
