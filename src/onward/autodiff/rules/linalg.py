"""Products of matrices and tensors: MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

import numpy as np

from onward.autodiff.registry import gradient
from onward.autodiff.rule import Rule, unbroadcast
from onward.autodiff.rules._einsum import Equation
from onward.autodiff.types import Grads
from onward.graph.builder import Value


def swap_last(rule: Rule, matrix: Value) -> Value:
    """Return `matrix` with its last two axes exchanged, for any rank."""
    rank = rule.rank(matrix)
    if rank is None:
        return rule.op.Einsum(matrix, equation="...ij->...ji")
    return rule.op.Transpose(matrix, perm=[*range(rank - 2), rank - 1, rank - 2])


def _rows(rule: Rule, value: Value) -> Value:
    """Return `value` as a matrix whose columns are its last axis."""
    return value if rule.rank(value) == 2 else rule.op.Flatten(value, axis=-1)


@gradient("MatMul", opset=1)
def matmul(rule: Rule, dY: Value) -> Grads:
    """Y = A @ B, so dA = dY @ B^T and dB = A^T @ dY, summed over the batch axes that were broadcast.

    Where B is a matrix, dB is one product of matrices over all rows of A.
    """
    op, A, B = rule.op, rule.input("A"), rule.input("B")
    rank_a, rank_b = rule.rank(A), rule.rank(B)
    dA = dB = None
    if rank_b == 2:
        if rule.needs("A"):
            dA = op.MatMul(dY, swap_last(rule, B))
        if rule.needs("B"):
            dB = op.MatMul(op.Transpose(_rows(rule, A), perm=[1, 0]), _rows(rule, dY))
    elif rank_b == 1 or (rank_a == 1 and rank_b is not None):
        return _matmul_with_vector(rule, dY, A, B)
    elif rank_a is not None and rank_b is not None:
        if rule.needs("A"):
            dA = _sum_batch(rule, op.MatMul(dY, swap_last(rule, B)), dY, A, B)
        if rule.needs("B"):
            dB = _sum_batch(rule, op.MatMul(swap_last(rule, A), dY), dY, B, A)
    else:
        return _matmul_of_unknown_rank(rule, dY, A, B)
    return {"A": dA, "B": dB}


def _matmul_with_vector(rule: Rule, dY: Value, A: Value, B: Value) -> Grads:
    """Return dA and dB for a vector B, or for a vector A and a B of known rank."""
    op, rank_a, rank_b = rule.op, rule.rank(A), rule.rank(B)
    dA = dB = None
    if rank_b == 1:
        if rule.needs("A"):
            dA = op.Mul(op.Unsqueeze(dY, [-1]), B)
        if rule.needs("B"):
            dB = op.MatMul(op.Reshape(dY, [-1]), _rows(rule, A)) if rank_a != 1 else op.Mul(dY, A)
        return {"A": dA, "B": dB}
    assert rank_b is not None
    if rule.needs("A"):
        products = op.MatMul(B, op.Unsqueeze(dY, [-1]))
        dA = rule.sum_over(products, [*range(rank_b - 2), rank_b - 1])
    if rule.needs("B"):
        dB = op.Mul(op.Unsqueeze(A, [-1]), op.Unsqueeze(dY, [-2]))
    return {"A": dA, "B": dB}


def _sum_batch(rule: Rule, grad: Value, dY: Value, target: Value, other: Value) -> Value:
    """Return `grad` summed over the batch axes in which `target` was broadcast against `other`."""
    dims, others, result = rule.dims(target), rule.dims(other), rule.dims(dY)
    assert dims is not None
    assert others is not None
    if dims[:-2] == others[:-2] and None not in dims[:-2]:
        return grad
    from_dims = (*result[:-2], *dims[-2:]) if result is not None else None
    return unbroadcast(rule, grad, from_dims, dY, target)


def _matmul_of_unknown_rank(rule: Rule, dY: Value, A: Value, B: Value) -> Grads:
    """Return dA and dB: give both operands at least two axes at run time, and transpose with an ellipsis.

    The product itself is a MatMul: ONNX Runtime's Einsum takes no ellipsis that stands for different numbers of axes.
    """
    op = rule.op
    shape_a, shape_b, shape_y = op.Shape(A), op.Shape(B), op.Shape(dY)
    missing_a, missing_b = (op.Max(op.Sub(2, op.Size(s)), 0) for s in (shape_a, shape_b))
    full_a = op.Concat(op.Expand(1, op.Reshape(missing_a, [1])), shape_a, axis=0)
    full_b = op.Concat(shape_b, op.Expand(1, op.Reshape(missing_b, [1])), axis=0)
    batch_end = op.Sub(op.Add(op.Size(shape_y), op.Add(missing_a, missing_b)), 2)
    batch = op.Slice(shape_y, [0], op.Reshape(batch_end, [1]))
    rows = op.Slice(full_a, [-2], [-1])
    columns = op.Slice(full_b, [-1], [np.iinfo(np.int64).max])
    matrix_a, matrix_b = op.Reshape(A, full_a, allowzero=1), op.Reshape(B, full_b, allowzero=1)
    matrix_y = op.Reshape(dY, op.Concat(batch, rows, columns, axis=0), allowzero=1)
    dA = dB = None
    if rule.needs("A"):
        grad = op.MatMul(matrix_y, op.Einsum(matrix_b, equation="...ij->...ji"))
        dA = unbroadcast(rule, grad, None, grad, A)
    if rule.needs("B"):
        grad = op.MatMul(op.Einsum(matrix_a, equation="...ij->...ji"), matrix_y)
        dB = rule.reshape_like(unbroadcast(rule, grad, None, grad, matrix_b), B)
    return {"A": dA, "B": dB}


@gradient("Gemm", opset=11)
def gemm(rule: Rule, dY: Value) -> Grads:
    """Y = alpha A' B' + beta C, so dA' = alpha dY B'^T, dB' = alpha A'^T dY and dC = beta dY, summed to C's shape.

    A transposed operand only exchanges the two factors: each gradient is one Gemm.
    """
    op, A, B, C = rule.op, rule.input("A"), rule.input("B"), rule.optional_input("C")
    alpha, beta = rule.attr("alpha"), rule.attr("beta")
    trans_a, trans_b = rule.attr("transA"), rule.attr("transB")

    def product(left: Value, right: Value, transA: int, transB: int) -> Value:
        return op.Gemm(left, right, alpha=None if alpha == 1.0 else alpha, transA=transA or None, transB=transB or None)

    dA = dB = dC = None
    if rule.needs("A"):
        dA = product(B, dY, trans_b, 1) if trans_a else product(dY, B, 0, 1 - trans_b)
    if rule.needs("B"):
        dB = product(dY, A, 1, trans_a) if trans_b else product(A, dY, 1 - trans_a, 0)
    if C is not None and rule.needs("C"):
        dC = unbroadcast(rule, dY, rule.dims(dY), dY, C)
        if beta != 1.0:
            dC = op.Mul(dC, beta)
    return {"A": dA, "B": dB, "C": dC}


@gradient("Einsum", opset=12)
def einsum(rule: Rule, dOutput: Value) -> Grads:
    """Output = sum of products over labels, so each dInput is the Einsum of dOutput with the other inputs.

    Over labels that only this input has, the gradient is repeated. For a label that the input repeats, the gradient
    lies on the diagonal.
    """
    inputs = rule.variadic("Inputs")
    equation = Equation(rule.attr("equation"), len(inputs))
    grads: list[Value | None] = [
        equation.gradient(rule, position, inputs, dOutput) if rule.needs("Inputs", position) else None
        for position in range(len(inputs))
    ]
    return {"Inputs": grads}


@gradient("Det", opset=11)
def det(rule: Rule, dY: Value) -> Grads:
    """Y = det X, so dX = dY times the cofactors of X, which also exist for a singular X.

    Cofactor (i, j) is the determinant of X with row i and column j cleared and 1 at their crossing. This costs n^2
    determinants: ONNX has neither an inverse nor a solver.
    """
    op, X = rule.op, rule.input("X")
    n = rule.known_dim(X, -1)
    if n is not None and n <= 8:
        eye = np.eye(n)
        crossing = eye[:, None, :, None] * eye[None, :, None, :]
        others = (1 - eye)[:, None, :, None] * (1 - eye)[None, :, None, :]
        mask, unit = op.constant(others, X.dtype), op.constant(crossing, X.dtype)
    else:
        size = rule.dim_of(X, -1)
        identity = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)), dtype=X.dtype)
        rest = op.Sub(1.0, identity)
        mask = op.Mul(op.Unsqueeze(rest, [1, 3]), op.Unsqueeze(rest, [0, 2]))
        unit = op.Mul(op.Unsqueeze(identity, [1, 3]), op.Unsqueeze(identity, [0, 2]))
    cleared = op.Add(op.Mul(op.Unsqueeze(X, [-4, -3]), mask), unit)
    return {"X": op.Mul(op.Unsqueeze(dY, [-2, -1]), op.Det(cleared))}
