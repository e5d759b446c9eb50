"""Expressions that several update formulas share."""

from __future__ import annotations

import math

from onward.graph.builder import Builder, Value


def as_float(op: Builder, T: Value, like: Value) -> Value:
    """Return the counter T in the type of `like`."""
    assert like.dtype is not None
    return op.cast(T, like.dtype)


def one_minus_power(op: Builder, base: float, exponent: Value) -> Value:
    """Return 1 - baseᵗ, accurate in float32 even for a base near 1, where a subtraction would cancel most digits.

    With h = tanh(-t·ln(base)/2): 1 - baseᵗ = 2h/(1 + h).
    """
    if base <= 0.0:
        return op.Add(op.Mul(exponent, 0.0), 1.0)
    h = op.Tanh(op.Mul(exponent, -0.5 * math.log(base)))
    return op.Div(op.Mul(h, 2.0), op.Add(h, 1.0))


def blend(op: Builder, weight: float, old: Value, new: Value) -> Value:
    """Return weight·old + (1 - weight)·new."""
    return op.Add(op.Mul(old, weight), op.Mul(new, 1.0 - weight))
