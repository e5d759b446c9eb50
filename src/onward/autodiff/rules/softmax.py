"""Softmax, LogSoftmax and Hardmax. The gradients use the forward output and compute no exponential twice."""

from __future__ import annotations

import numpy as np

from onward.autodiff.registry import ZERO, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph import walk
from onward.graph.builder import Value


@gradient("Softmax", opset=13)
def softmax(rule: Rule, doutput: Value) -> Grads:
    """output = e^X / sum(e^X), so dinput = (doutput - sum(doutput * output)) * output."""
    op, Y = rule.op, without_nan(rule.output("output"))
    return {"input": op.Mul(Y, op.Sub(doutput, _sum(rule, op.Mul(doutput, Y))))}


@gradient("LogSoftmax", opset=13)
def log_softmax(rule: Rule, doutput: Value) -> Grads:
    """output = X - log(sum(e^X)), so dinput = doutput - e^output * sum(doutput)."""
    op = rule.op
    return {"input": op.Sub(doutput, op.Mul(op.Exp(rule.output("output")), _sum(rule, doutput)))}


def without_nan(Y: Value) -> Value:
    """Return Where(IsNaN(Y), 0, Y) if the graph has it, else Y.

    PyTorch writes it behind the Softmax of attention: a query that may see no key has the result 0, and the gradient 0.
    """
    maker = Y.producer()
    for test in Y.consumers():
        choices = test.outputs[0].consumers() if test.op_type == "IsNaN" else ()
        for choice in choices:
            if maker is None or choice.graph is not maker.graph:  # what a branch computes is not known outside
                continue
            condition, chosen, other = choice.inputs if choice.op_type == "Where" else (None, None, None)
            zero = walk.constant_of(chosen)
            if zero is None or zero.size != 1 or zero.ndim > 1 or zero.any():  # others give the result more axes
                continue
            if condition is test.outputs[0] and other is Y:
                return choice.outputs[0]
    return Y


def _sum(rule: Rule, value: Value) -> Value:
    return rule.op.ReduceSum(value, np.array([rule.attr("axis")], np.int64), keepdims=1)


declare("Hardmax", opset=13, input=ZERO)
