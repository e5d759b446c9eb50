"""Element-wise mathematics.

The formulas keep the digits near 0 and near the ends of the range: log(1 + y) and sinh would cancel or overflow as
textbooks write them.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Value
from onward.passes.core.registry import Lowering, decomposition

_UNSIGNED = frozenset({ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64})


def is_float(dtype: ir.DataType) -> bool:
    return dtype.is_floating_point()


@decomposition("Neg")
def neg(at: Lowering) -> Value:
    """X * -1, which gives -0 for 0."""
    return at.op.Mul(at.input("X"), -1)


@decomposition("Reciprocal")
def reciprocal(at: Lowering) -> Value:
    """1 / X."""
    return at.op.Div(1.0, at.input("X"))


@decomposition("Ceil")
def ceil(at: Lowering) -> Value:
    """-Floor(-X)."""
    op = at.op
    return op.Mul(op.Floor(op.Mul(at.input("X"), -1.0)), -1.0)


@decomposition("Sign")
def sign(at: Lowering) -> Value:
    """(0 < X) - (X < 0); NaN stays NaN."""
    op, x = at.op, at.input("input")
    dtype = at.dtype(x)
    positive = op.Cast(op.Less(op.constant(0, dtype), x), to=dtype)
    if dtype in _UNSIGNED:
        return positive
    found = op.Sub(positive, op.Cast(op.Less(x, op.constant(0, dtype)), to=dtype))
    return op.Where(op.Equal(x, x), found, x) if is_float(dtype) else found


@decomposition("Sum")
def sum_(at: Lowering) -> Value:
    """A + B + …, from the left."""
    total, *others = at.variadic("data_0")
    for value in others:
        total = at.op.Add(total, value)
    return total


@decomposition("Mean")
def mean(at: Lowering) -> Value:
    """(A + B + …) / n."""
    values = at.variadic("data_0")
    return at.op.Div(at.op.Sum(*values), float(len(values)))


@decomposition("Clip")
def clip(at: Lowering) -> Value:
    """Min(Max(X, min), max)."""
    x, low, high = at.input("input"), at.optional_input("min"), at.optional_input("max")
    if low is not None:
        x = at.op.Max(x, low)
    return x if high is None else at.op.Min(x, high)


@decomposition("Tan")
def tan(at: Lowering) -> Value:
    """Sin / Cos."""
    x = at.input("input")
    return at.op.Div(at.op.Sin(x), at.op.Cos(x))


@decomposition("Asin")
def asin(at: Lowering) -> Value:
    """Atan(X / Sqrt((1 - X)(1 + X))), which is exact at -1 and 1 and NaN outside."""
    op, x = at.op, at.input("input")
    return op.Atan(op.Div(x, op.Sqrt(op.Mul(op.Sub(1.0, x), op.Add(x, 1.0)))))


@decomposition("Acos")
def acos(at: Lowering) -> Value:
    """2 Atan(Sqrt((1 - X) / (1 + X)))."""
    op, x = at.op, at.input("input")
    return op.Mul(op.Atan(op.Sqrt(op.Div(op.Sub(1.0, x), op.Add(x, 1.0)))), 2.0)


@decomposition("Sinh")
def sinh(at: Lowering) -> Value:
    """Below 1: 2t / ((1 - t)(1 + t)) with t = Tanh(X / 2); above: e^(X/2) twice, which overflows no earlier."""
    op, x = at.op, at.input("input")
    size = op.Abs(x)
    t = op.Tanh(op.Mul(op.Min(size, 1.0), 0.5))
    near = op.Div(op.Mul(t, 2.0), op.Mul(op.Sub(1.0, t), op.Add(t, 1.0)))
    half = op.Exp(op.Mul(size, 0.5))
    far = op.Sub(op.Mul(op.Mul(half, 0.5), half), op.Div(op.Div(0.5, half), half))
    return signed(op, x, op.Where(op.Less(size, 1.0), near, far))


@decomposition("Cosh")
def cosh(at: Lowering) -> Value:
    """(e^|X| + e^-|X|) / 2, by e^(|X|/2) twice, which overflows no earlier."""
    op, x = at.op, at.input("input")
    half = op.Exp(op.Mul(op.Abs(x), 0.5))
    return op.Add(op.Mul(op.Mul(half, 0.5), half), op.Div(op.Div(0.5, half), half))


@decomposition("Asinh")
def asinh(at: Lowering) -> Value:
    """log(1 + |X| + X^2 / (1 + Sqrt(1 + X^2))) below 1, log|X| + log(1 + Sqrt(1 + 1/X^2)) above, with X's sign."""
    op, x = at.op, at.input("input")
    size = op.Abs(x)
    low, high = op.Min(size, 1.0), op.Max(size, 1.0)
    square = op.Mul(low, low)
    near = log1p(op, op.Add(low, op.Div(square, op.Add(op.Sqrt(op.Add(square, 1.0)), 1.0))))
    inverse = op.Div(1.0, high)
    far = op.Add(op.Log(high), op.Log(op.Add(op.Sqrt(op.Add(op.Mul(inverse, inverse), 1.0)), 1.0)))
    return signed(op, x, op.Where(op.Less(size, 1.0), near, far))


@decomposition("Acosh")
def acosh(at: Lowering) -> Value:
    """With t = X - 1: log(1 + t + Sqrt(t (t + 2))) below 2, log X + log(1 + Sqrt(1 - 1/X^2)) above."""
    op, x = at.op, at.input("input")
    t = op.Sub(op.Min(x, 2.0), 1.0)
    near = log1p(op, op.Add(t, op.Sqrt(op.Mul(t, op.Add(t, 2.0)))))
    inverse = op.Div(1.0, op.Max(x, 1.0))
    root = op.Sqrt(op.Mul(op.Sub(1.0, inverse), op.Add(inverse, 1.0)))
    far = op.Add(op.Log(x), op.Log(op.Add(root, 1.0)))
    return op.Where(op.Less(x, 2.0), near, far)


@decomposition("Atanh")
def atanh(at: Lowering) -> Value:
    """log(1 + 2|X| / (1 - |X|)) / 2, with X's sign."""
    op, x = at.op, at.input("input")
    size = op.Abs(x)
    return signed(op, x, op.Mul(log1p(op, op.Div(op.Mul(size, 2.0), op.Sub(1.0, size))), 0.5))


def signed(op: Builder, x: Value, size: Value) -> Value:
    """Return `size` with the sign of `x`, also for zeros."""
    return op.Where(op.Equal(x, 0.0), x, op.Where(op.Less(x, 0.0), op.Mul(size, -1.0), size))


def log1p(op: Builder, y: Value) -> Value:
    """Return log(1 + y) with all digits: log(u) y / (u - 1) with u = 1 + y as it is rounded."""
    u = op.Add(y, 1.0)
    d = op.Sub(u, 1.0)
    factor = op.Where(op.Equal(d, y), 1.0, op.Div(y, d))
    return op.Where(op.Equal(d, 0.0), y, op.Mul(op.Log(u), factor))


@decomposition("IsNaN")
def is_nan(at: Lowering) -> Value:
    """NaN is not equal to itself."""
    x = at.input("X")
    return at.op.Not(at.op.Equal(x, x))


@decomposition("IsInf")
def is_inf(at: Lowering) -> Value:
    """Equal to infinity, or to minus infinity."""
    op, x = at.op, at.input("X")
    both = [s for s, name in ((math.inf, "detect_positive"), (-math.inf, "detect_negative")) if at.attr(name)]
    if len(both) == 2:
        return op.Equal(op.Abs(x), math.inf)
    return op.Equal(x, both[0]) if both else op.Not(op.Or(op.Equal(x, x), op.Not(op.Equal(x, x))))


@decomposition("CastLike")
def cast_like(at: Lowering) -> Value:
    """Cast to the type of the other input."""
    given = {name: at.node.attributes[name].value for name in ("saturate", "round_mode") if name in at.node.attributes}
    return at.op.Cast(at.input("input"), to=at.dtype(at.input("target_type")), **given)


@decomposition("BitwiseNot")
def bitwise_not(at: Lowering) -> Value:
    """BitwiseXor with ones in every bit."""
    x = at.input("X")
    return at.op.BitwiseXor(x, np.array(-1).astype(at.dtype(x).numpy()))
