"""Running sums and products along an axis."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("CumSum", opset=14, axis=NON_DIFFERENTIABLE)
def cum_sum(rule: Rule, dy: Value) -> Grads:
    """y[k] = the sum of x up to k, so dx[i] = the sum of dy from i on: a CumSum in the other direction."""
    exclusive, reverse = rule.attr("exclusive"), rule.attr("reverse")
    return {"x": rule.op.CumSum(dy, rule.input("axis"), exclusive=exclusive, reverse=1 - reverse)}


@gradient("CumProd", opset=26, axis=NON_DIFFERENTIABLE)
def cum_prod(rule: Rule, dy: Value) -> Grads:
    """y[k] = the product of x up to k, so dx[i] = the sum of dy[k] y[k] / x[i] from i on.

    At the first zero z, y / x is the product without x[z]; behind z, every product has the factor x[z] = 0.
    """
    op, x, y, axis = rule.op, rule.input("x"), rule.output("y"), rule.input("axis")
    exclusive, reverse = rule.attr("exclusive"), rule.attr("reverse")
    dtype = x.dtype or ir.DataType.FLOAT

    def sum_of_rest(products: Value) -> Value:
        return op.CumSum(op.Mul(dy, products), axis, exclusive=exclusive, reverse=1 - reverse)

    is_zero = op.Equal(x, 0.0)
    zeros_so_far = op.CumSum(op.Cast(is_zero, to=dtype), axis, reverse=reverse)
    first = op.And(is_zero, op.Equal(zeros_so_far, 1.0))
    without = op.CumProd(op.Where(first, 1.0, x), axis, exclusive=exclusive, reverse=reverse)
    elsewhere = op.Div(sum_of_rest(y), op.Where(is_zero, 1.0, x))
    return {"x": op.Where(first, sum_of_rest(without), elsewhere)}
