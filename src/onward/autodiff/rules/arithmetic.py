"""Arithmetic with broadcasting: the engine sums each gradient back to its input's shape."""

from __future__ import annotations

from onward.autodiff.registry import gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.model.builder import Value


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


@gradient("Neg", opset=6)
def neg(rule: Rule, dY: Value) -> Grads:
    """Y = -X, so dX = -dY."""
    return {"X": rule.op.Neg(dY)}


@gradient("Sum", opset=8, broadcasts=True)
def sum_(rule: Rule, dsum: Value) -> Grads:
    """sum = the sum of all inputs, so each gradient is dsum."""
    return {"data_0": [dsum for _ in rule.variadic("data_0")]}
