"""Comparisons and logic."""

from __future__ import annotations

from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition


@decomposition("Greater")
def greater(at: Lowering) -> Value:
    """B < A."""
    return at.op.Less(at.input("B"), at.input("A"))


@decomposition("LessOrEqual")
def less_or_equal(at: Lowering) -> Value:
    """A < B or A = B."""
    a, b = at.input("A"), at.input("B")
    return at.op.Or(at.op.Less(a, b), at.op.Equal(a, b))


@decomposition("GreaterOrEqual")
def greater_or_equal(at: Lowering) -> Value:
    """B < A or A = B."""
    a, b = at.input("A"), at.input("B")
    return at.op.Or(at.op.Less(b, a), at.op.Equal(a, b))


@decomposition("Xor")
def xor(at: Lowering) -> Value:
    """Not equal."""
    return at.op.Not(at.op.Equal(at.input("A"), at.input("B")))
