"""Arithmetic with broadcasting: the engine sums each gradient back to its input's shape."""

from __future__ import annotations

import numpy as np

from onward.autodiff.registry import NON_DIFFERENTIABLE, ZERO, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("Add", opset=7, broadcasts=True)
def add(rule: Rule, dC: Value) -> Grads:
    """C = A + B, so dA = dB = dC."""
    return {"A": dC, "B": dC}


@gradient("Sub", opset=7, broadcasts=True)
def sub(rule: Rule, dC: Value) -> Grads:
    """C = A - B, so dA = dC and dB = -dC."""
    return {"A": dC, "B": rule.op.Neg(dC)}


@gradient("Mul", opset=7, broadcasts=True)
def mul(rule: Rule, dC: Value) -> Grads:
    """C = A * B, so dA = dC * B and dB = dC * A."""
    op = rule.op
    return {"A": op.Mul(dC, rule.input("B")), "B": op.Mul(dC, rule.input("A"))}


@gradient("Div", opset=7, broadcasts=True)
def div(rule: Rule, dC: Value) -> Grads:
    """C = A / B, so dA = dC / B and dB = -dA * C."""
    op = rule.op
    dA = op.Div(dC, rule.input("B"))
    return {"A": dA, "B": op.Neg(op.Mul(dA, rule.output("C")))}


@gradient("Mod", opset=13, broadcasts=True)
def mod(rule: Rule, dC: Value) -> Grads:
    """C = A - n * B with the integer n = (A - C) / B, so dA = dC and dB = -n * dC; both for fmod=0 and fmod=1."""
    if not rule.needs("B"):
        return {"A": dC}
    op, A, B = rule.op, rule.input("A"), rule.input("B")
    n = op.Floor(op.Add(op.Div(op.Sub(A, rule.output("C")), B), 0.5))  # Round has no bfloat16 before opset 22
    return {"A": dC, "B": op.Neg(op.Mul(dC, n))}


@gradient("Neg", opset=6)
def neg(rule: Rule, dY: Value) -> Grads:
    """Y = -X, so dX = -dY."""
    return {"X": rule.op.Neg(dY)}


@gradient("Abs", opset=13)
def abs_(rule: Rule, dY: Value) -> Grads:
    """Y = |X|, so dX = dY * sign(X)."""
    # Abs at X == 0: slope 0, as PyTorch does.
    return {"X": rule.op.Mul(dY, rule.op.Sign(rule.input("X")))}


declare("Sign", opset=13, input=ZERO)


@gradient("Reciprocal", opset=13)
def reciprocal(rule: Rule, dY: Value) -> Grads:
    """Y = 1 / X, so dX = -dY * Y²."""
    op, Y = rule.op, rule.output("Y")
    return {"X": op.Neg(op.Mul(dY, op.Mul(Y, Y)))}


@gradient("Sqrt", opset=13)
def sqrt(rule: Rule, dY: Value) -> Grads:
    """Y = √X, so dX = dY / (2 Y); infinite at 0, as in PyTorch."""
    return {"X": rule.op.Div(dY, rule.op.Mul(rule.output("Y"), 2.0))}


@gradient("Pow", opset=15, broadcasts=True)
def pow_(rule: Rule, dZ: Value) -> Grads:
    """Z = X ** Y, so dX = dZ * Y * X ** (Y - 1) and dY = dZ * Z * log X."""
    op, X, Z = rule.op, rule.input("X"), rule.output("Z")
    grads: dict[str, Value] = {}
    assert X.dtype is not None
    if rule.needs("X"):
        grads["X"] = _pow_by_base(rule, dZ)
    if rule.needs("Y"):
        # 0 ** Y is flat in Y where Y >= 0 (PyTorch: 0 there). Replacing the base, and not the result, keeps second
        # derivatives finite. A negative base has no logarithm: NaN, as in PyTorch.
        Y = op.cast(rule.input("Y"), X.dtype)
        flat = op.And(op.Equal(X, 0.0), op.GreaterOrEqual(Y, 0.0))
        log = op.Log(op.Where(flat, 1.0, X))
        grads["Y"] = op.Mul(dZ, op.Mul(Z, log))
    return grads


def _pow_by_base(rule: Rule, dZ: Value) -> Value:
    op, X, Z = rule.op, rule.input("X"), rule.output("Z")
    assert X.dtype is not None
    known = rule.constant_input("Y")
    if known is not None and known.size == 1:
        exponent = float(known.reshape(()))
        if exponent == 0:
            return op.Mul(dZ, 0.0)
        if exponent == 1:
            return op.Mul(dZ, 1.0)
        if exponent == 2:
            return op.Mul(dZ, op.Mul(X, 2.0))
        if exponent == 0.5:
            return op.Div(op.Mul(dZ, 0.5), Z)
        return op.Mul(dZ, op.Mul(op.Pow(X, exponent - 1), exponent))
    Y = op.cast(rule.input("Y"), X.dtype)
    lower = op.Sub(Y, 1.0)
    if known is None or np.any(known == 0):
        # 0 * 0 ** -1 would be NaN; X ** 0 is flat there (PyTorch: 0).
        both_zero = op.And(op.Equal(X, 0.0), op.Equal(Y, 0.0))
        lower = op.Where(both_zero, 1.0, lower)
    return op.Mul(dZ, op.Mul(Y, op.Pow(X, lower)))


@gradient("Sum", opset=8, broadcasts=True)
def sum_(rule: Rule, dsum: Value) -> Grads:
    """sum = the sum of all inputs, so each gradient is dsum."""
    shares: list[Value | None] = [dsum for _ in rule.variadic("data_0")]
    return {"data_0": shares}


@gradient("Mean", opset=13, broadcasts=True)
def mean(rule: Rule, dmean: Value) -> Grads:
    """mean = the sum of all n inputs / n, so each gradient is dmean / n."""
    inputs = rule.variadic("data_0")
    share = rule.op.Div(dmean, float(len(inputs))) if len(inputs) > 1 else dmean
    shares: list[Value | None] = [share for _ in inputs]
    return {"data_0": shares}


@gradient("Max", opset=13, broadcasts=True)
def max_(rule: Rule, dmax: Value) -> Grads:
    """max = the greatest input; the inputs equal to it share dmax evenly."""
    return {"data_0": _share_among_equal(rule, dmax, rule.output("max"))}


@gradient("Min", opset=13, broadcasts=True)
def min_(rule: Rule, dmin: Value) -> Grads:
    """min = the least input; the inputs equal to it share dmin evenly."""
    return {"data_0": _share_among_equal(rule, dmin, rule.output("min"))}


def _share_among_equal(rule: Rule, grad: Value, extreme: Value) -> list[Value | None]:
    # Ties: equal shares, as torch.maximum (two inputs: one half each) and torch.amax do.
    op, inputs = rule.op, rule.variadic("data_0")
    assert grad.dtype is not None
    if len(inputs) == 1:
        return [grad]
    chosen = [op.cast(op.Equal(x, extreme), grad.dtype) for x in inputs]
    share = op.Div(grad, op.Sum(*chosen))
    return [op.Mul(share, c) for c in chosen]


@gradient("Clip", opset=13)
def clip(rule: Rule, doutput: Value) -> Grads:
    """output = min(max(input, min), max): doutput goes to the input inside the bounds, else to the bound it met."""
    op, X, low, high = rule.op, rule.input("input"), rule.optional_input("min"), rule.optional_input("max")
    assert doutput.dtype is not None
    grads: dict[str, Value] = {}
    if rule.needs("input"):
        # input == output is min <= input <= max: at a bound the slope is 1, as PyTorch does.
        inside = op.cast(op.Equal(X, rule.output("output")), doutput.dtype)
        grads["input"] = op.Mul(doutput, inside)
    # Where min > max, ONNX and PyTorch give max everywhere: everything goes to max and nothing to min.
    if low is not None and rule.needs("min"):
        below = op.Less(X, low)
        if high is not None:
            below = op.And(below, op.Less(low, high))
        grads["min"] = _sum_where(rule, doutput, below, low)
    if high is not None and rule.needs("max"):
        above = op.Greater(X, high)
        if low is not None:
            above = op.Or(above, op.Less(high, low))
        grads["max"] = _sum_where(rule, doutput, above, high)
    return grads


def _sum_where(rule: Rule, grad: Value, mask: Value, bound: Value) -> Value:
    op = rule.op
    assert grad.dtype is not None
    total = op.ReduceSum(op.Mul(grad, op.cast(mask, grad.dtype)), keepdims=0)
    return total if rule.rank(bound) == 0 else rule.reshape_like(total, bound)


declare("BitShift", opset=11, X=NON_DIFFERENTIABLE, Y=NON_DIFFERENTIABLE)
declare("BitwiseAnd", opset=18, A=NON_DIFFERENTIABLE, B=NON_DIFFERENTIABLE)
declare("BitwiseOr", opset=18, A=NON_DIFFERENTIABLE, B=NON_DIFFERENTIABLE)
declare("BitwiseXor", opset=18, A=NON_DIFFERENTIABLE, B=NON_DIFFERENTIABLE)
declare("BitwiseNot", opset=18, X=NON_DIFFERENTIABLE)
