"""Activations whose body in the standard is missing or overflows; the others are in `standard.py`."""

from __future__ import annotations

from onward.graph.builder import Builder, Value
from onward.passes.core.elementary import log1p
from onward.passes.core.registry import Lowering, decomposition


@decomposition("Relu")
def relu(at: Lowering) -> Value:
    """Max(X, 0)."""
    return at.op.Max(at.input("X"), 0)


@decomposition("Sigmoid")
def sigmoid(at: Lowering) -> Value:
    """With z = e^-|X|: 1 / (1 + z) from 0 on, z / (1 + z) below, so nothing overflows and small values stay."""
    op, x = at.op, at.input("X")
    z = op.Exp(op.Mul(op.Abs(x), -1.0))
    return op.Div(op.Where(op.Less(x, 0.0), z, 1.0), op.Add(z, 1.0))


@decomposition("Softplus")
def softplus(at: Lowering) -> Value:
    """Max(X, 0) + log(1 + e^-|X|); the body in the standard overflows."""
    return stable_softplus(at.op, at.input("X"))


def stable_softplus(op: Builder, x: Value) -> Value:
    return op.Add(op.Max(x, 0.0), log1p(op, op.Exp(op.Mul(op.Abs(x), -1.0))))


@decomposition("Mish")
def mish(at: Lowering) -> Value:
    """X * Tanh(Softplus(X))."""
    x = at.input("X")
    return at.op.Mul(x, at.op.Tanh(stable_softplus(at.op, x)))


@decomposition("Hardmax")
def hardmax(at: Lowering) -> Value:
    """1 at the first largest element of the axis, else 0."""
    op, x = at.op, at.input("input")
    axis, rank = at.axis(x), at.rank_of(x)
    if rank == 0:
        return op.Add(op.Mul(x, 0.0), 1.0)
    best = op.ArgMax(x, axis=axis, keepdims=1)
    return op.Cast(op.Equal(at.along(at.count(at.size(x, axis)), axis, rank), best), to=at.dtype(x))
