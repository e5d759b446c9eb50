"""Determinants."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.emit import subgraph_input
from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

INT64, BOOL = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)


@decomposition("Det", kernel="a factorisation in blocks instead of one row per step of a Loop")
def det(at: Lowering) -> Value:
    """Gaussian elimination with pivots, one column per step of a Loop: the product of the pivots, with signs."""
    op, X = at.op, at.input("X")
    rank, dtype = at.rank_of(X), at.dtype(X)
    n = at.size(X, rank - 1)
    batch = at.mul(*(at.size(X, i) for i in range(rank - 2)))
    matrices = at.reshape(X, [batch, n, n])
    ones = op.Expand(op.constant(1.0, dtype), at.vector([batch, 1, 1]))
    rows = at.reshape(at.count(n), [1, -1, 1])
    inner = op.inner(f"{op.prefix}step/")
    step = subgraph_input(inner, "step", INT64, ir.Shape([]))
    go = subgraph_input(inner, "go", BOOL, ir.Shape([]))
    A = subgraph_input(inner, "A", X.type, ir.Shape([None, None, None]))
    d = subgraph_input(inner, "d", X.type, ir.Shape([None, None, None]))
    column = inner.Gather(A, inner.Reshape(step, [1]), axis=2)
    column.shape = ir.Shape([None, None, 1])
    left = inner.Not(inner.Less(rows, step))
    best = inner.ArgMax(inner.Where(left, inner.Abs(column), -1.0), axis=1, keepdims=1)
    chosen = inner.Cast(inner.Equal(rows, best), to=dtype)
    own = inner.Cast(inner.Equal(rows, step), to=dtype)
    pivot_row = inner.ReduceSum(inner.Mul(A, chosen), [1], keepdims=1)
    step_row = inner.ReduceSum(inner.Mul(A, own), [1], keepdims=1)
    # Exchange the two rows, then clear the column below.
    swapped = inner.Where(inner.Equal(rows, best), step_row, inner.Where(inner.Equal(rows, step), pivot_row, A))
    pivot = inner.Gather(pivot_row, inner.Reshape(step, [1]), axis=2)
    lead = inner.Gather(swapped, inner.Reshape(step, [1]), axis=2)
    safe = inner.Where(inner.Equal(pivot, 0.0), 1.0, pivot)
    factor = inner.Where(inner.Less(step, rows), inner.Div(lead, safe), 0.0)
    reduced = inner.Sub(swapped, inner.Mul(factor, pivot_row))
    sign = inner.Where(inner.Equal(best, step), 1.0, op.constant(-1.0, dtype))
    product = inner.Mul(d, inner.Mul(pivot, sign))
    on = inner.Identity(go)
    body = ir.Graph([step, go, A, d], [on, reduced, product], nodes=inner.nodes, name=f"{op.prefix}step")
    _, found = op.call("Loop", [at.scalar(n), op.constant(True), matrices, ones], outputs=2, body=body)
    found.type = X.type
    return at.reshape(found, [at.size(X, i) for i in range(rank - 2)])
