"""Elementary functions of one argument."""

from __future__ import annotations

import math

from onward.autodiff.registry import NON_DIFFERENTIABLE, ZERO, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("Identity", opset=16, integers=True)
def identity(rule: Rule, doutput: Value) -> Grads:
    """output = input, so dinput = doutput."""
    return {"input": doutput}


@gradient("Exp", opset=13)
def exp(rule: Rule, doutput: Value) -> Grads:
    """output = e^input, so dinput = doutput * output."""
    return {"input": rule.op.Mul(doutput, rule.output("output"))}


@gradient("Log", opset=13)
def log(rule: Rule, doutput: Value) -> Grads:
    """output = log input, so dinput = doutput / input."""
    return {"input": rule.op.Div(doutput, rule.input("input"))}


@gradient("Sin", opset=7)
def sin(rule: Rule, doutput: Value) -> Grads:
    """output = sin input, so dinput = doutput * cos input."""
    return {"input": rule.op.Mul(doutput, rule.op.Cos(rule.input("input")))}


@gradient("Cos", opset=7)
def cos(rule: Rule, doutput: Value) -> Grads:
    """output = cos input, so dinput = -doutput * sin input."""
    return {"input": rule.op.Neg(rule.op.Mul(doutput, rule.op.Sin(rule.input("input"))))}


@gradient("Tan", opset=7)
def tan(rule: Rule, doutput: Value) -> Grads:
    """output = tan input, so dinput = doutput * (1 + output²)."""
    op, Y = rule.op, rule.output("output")
    return {"input": op.Mul(doutput, op.Add(op.Mul(Y, Y), 1.0))}


@gradient("Asin", opset=7)
def asin(rule: Rule, doutput: Value) -> Grads:
    """output = asin input, so dinput = doutput / √(1 - input²)."""
    return {"input": rule.op.Div(doutput, rule.op.Sqrt(_one_minus_square(rule)))}


@gradient("Acos", opset=7)
def acos(rule: Rule, doutput: Value) -> Grads:
    """output = acos input, so dinput = -doutput / √(1 - input²)."""
    return {"input": rule.op.Neg(rule.op.Div(doutput, rule.op.Sqrt(_one_minus_square(rule))))}


@gradient("Atan", opset=7)
def atan(rule: Rule, doutput: Value) -> Grads:
    """output = atan input, so dinput = doutput / (1 + input²)."""
    op, X = rule.op, rule.input("input")
    return {"input": op.Div(doutput, op.Add(op.Mul(X, X), 1.0))}


@gradient("Sinh", opset=9)
def sinh(rule: Rule, doutput: Value) -> Grads:
    """output = sinh input, so dinput = doutput * cosh input."""
    return {"input": rule.op.Mul(doutput, rule.op.Cosh(rule.input("input")))}


@gradient("Cosh", opset=9)
def cosh(rule: Rule, doutput: Value) -> Grads:
    """output = cosh input, so dinput = doutput * sinh input."""
    return {"input": rule.op.Mul(doutput, rule.op.Sinh(rule.input("input")))}


@gradient("Tanh", opset=13)
def tanh(rule: Rule, doutput: Value) -> Grads:
    """output = tanh input, so dinput = doutput * (1 - output²)."""
    op, Y = rule.op, rule.output("output")
    return {"input": op.Mul(doutput, op.Sub(1.0, op.Mul(Y, Y)))}


@gradient("Asinh", opset=9)
def asinh(rule: Rule, doutput: Value) -> Grads:
    """output = asinh input, so dinput = doutput / √(input² + 1)."""
    op, X = rule.op, rule.input("input")
    return {"input": op.Div(doutput, op.Sqrt(op.Add(op.Mul(X, X), 1.0)))}


@gradient("Acosh", opset=9)
def acosh(rule: Rule, doutput: Value) -> Grads:
    """output = acosh input, so dinput = doutput / √(input² - 1)."""
    op, X = rule.op, rule.input("input")
    # (X - 1)(X + 1) is exact near 1, where X² - 1 cancels.
    return {"input": op.Div(doutput, op.Sqrt(op.Mul(op.Sub(X, 1.0), op.Add(X, 1.0))))}


@gradient("Atanh", opset=9)
def atanh(rule: Rule, doutput: Value) -> Grads:
    """output = atanh input, so dinput = doutput / (1 - input²)."""
    return {"input": rule.op.Div(doutput, _one_minus_square(rule))}


def _one_minus_square(rule: Rule) -> Value:
    op, X = rule.op, rule.input("input")
    return op.Mul(op.Sub(1.0, X), op.Add(X, 1.0))  # exact near ±1, where 1 - X² cancels


@gradient("Erf", opset=13)
def erf(rule: Rule, doutput: Value) -> Grads:
    """output = erf input, so dinput = doutput * 2/√π * e^(-input²)."""
    op, X = rule.op, rule.input("input")
    slope = op.Mul(op.Exp(op.Neg(op.Mul(X, X))), 2.0 / math.sqrt(math.pi))
    return {"input": op.Mul(doutput, slope)}


declare("Floor", opset=13, X=ZERO)
declare("Ceil", opset=13, X=ZERO)
declare("Round", opset=11, X=ZERO)
declare("IsNaN", opset=13, X=NON_DIFFERENTIABLE)
declare("IsInf", opset=10, X=NON_DIFFERENTIABLE)
