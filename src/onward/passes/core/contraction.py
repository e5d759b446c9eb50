"""Sums of products."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.rules._einsum import DOTS, Equation
from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

INT32 = ir.DataType.INT32


@decomposition("Gemm")
def gemm(at: Lowering) -> Value:
    """alpha * MatMul(A, B) + beta * C, with transposes."""
    op, c = at.op, at.optional_input("C")
    a, b = (
        op.Transpose(at.input(name), perm=[1, 0]) if at.attr(f"trans{name}") else at.input(name) for name in ("A", "B")
    )
    product = op.MatMul(a, b)
    own = dtype = at.dtype(at.input("A"))
    if not dtype.is_floating_point() and (at.attr("alpha") % 1 or at.attr("beta") % 1):
        dtype = ir.DataType.DOUBLE  # fractions of integers, rounded towards 0 at the end
        product, c = op.Cast(product, to=dtype), None if c is None else op.Cast(c, to=dtype)
    if at.attr("alpha") != 1.0:
        product = op.Mul(product, op.constant(at.attr("alpha"), dtype))
    if c is None or at.attr("beta") == 0.0:
        return op.cast(product, own)
    return op.cast(
        op.Add(product, c if at.attr("beta") == 1.0 else op.Mul(c, op.constant(at.attr("beta"), dtype))), own
    )


@decomposition("MatMulInteger", kernel="8-bit products: the integers are widened to 32 bits, four times the bytes")
def matmul_integer(at: Lowering) -> Value:
    """MatMul of (A - a_zero_point) and (B - b_zero_point) as int32."""
    a_zero, b_zero = at.optional_input("a_zero_point"), at.optional_input("b_zero_point")
    if a_zero is not None and at.rank(a_zero) == 1 and at.known_dim(a_zero, 0) != 1:
        a_zero = at.op.Unsqueeze(a_zero, [-1])  # one per row
    return at.op.MatMul(centred(at, at.input("A"), a_zero), centred(at, at.input("B"), b_zero))


def centred(at: Lowering, value: Value, zero: Value | None) -> Value:
    """Return integers minus their zero point, as int32."""
    wide = at.op.Cast(value, to=INT32)
    return wide if zero is None else at.op.Sub(wide, at.op.Cast(zero, to=INT32))


@decomposition("Einsum")
def einsum(at: Lowering) -> Value:
    """Operands two at a time: Transpose, Reshape, MatMul, over what no later term needs."""
    values = at.variadic("Inputs")
    equation = Equation(at.attr("equation"), len(values))
    dots = max(
        (at.rank_of(v) - len(t) + 1 for t, v in zip(equation.terms, values, strict=True) if DOTS in t), default=0
    )
    terms = [_spelled(t, at.rank_of(v) - len(t) + 1) for t, v in zip(equation.terms, values, strict=True)]
    output = _spelled(equation.output, dots)
    operands = [_diagonal(at, labels, value) for labels, value in zip(terms, values, strict=True)]
    labels, total = operands[0]
    for position, (other, value) in enumerate(operands[1:], 1):
        later = {label for names, _ in operands[position + 1 :] for label in names} | set(output)
        labels, total = _product(at, labels, total, other, value, later)
    gone = [i for i, label in enumerate(labels) if label not in output]
    if gone:
        total = at.op.ReduceSum(total, gone, keepdims=0)
        total.shape = ir.Shape([None] * (len(labels) - len(gone)))
        labels = [label for label in labels if label in output]
    return _ordered(at, labels, total, output)


def _spelled(term: list[str], dots: int) -> list[str]:
    """Return the labels of a term with one label for each axis of the ellipsis, counted from its end."""
    return [label for name in term for label in ([f".{i}" for i in range(dots, 0, -1)] if name == DOTS else [name])]


def _diagonal(at: Lowering, labels: list[str], value: Value) -> tuple[list[str], Value]:
    """Return an operand without labels that occur twice: the diagonal of their axes."""
    op = at.op
    while len(set(labels)) < len(labels):
        label = next(x for x in labels if labels.count(x) > 1)
        first, second = [i for i, x in enumerate(labels) if x == label][:2]
        others = [i for i in range(len(labels)) if i not in (first, second)]
        moved = op.Transpose(value, perm=[first, second, *others])
        moved.shape = None if value.shape is None else ir.Shape([value.shape[i] for i in (first, second, *others)])
        size, rest = at.size(value, first), [at.size(value, i) for i in others]
        flat = at.reshape(moved, [at.mul(size, size), *rest])
        value = op.Gather(flat, op.Mul(at.count(size), at.scalar(at.add(size, 1))), axis=0)
        value.shape = ir.Shape([d if isinstance(d, int) else None for d in (size, *rest)])
        labels = [label, *(labels[i] for i in others)]
    return labels, value


def _ordered(at: Lowering, labels: list[str], value: Value, wanted: list[str]) -> Value:
    if labels == wanted:
        return value
    made = at.op.Transpose(value, perm=[labels.index(label) for label in wanted])
    made.shape = None if value.shape is None else ir.Shape([value.shape[labels.index(x)] for x in wanted])
    return made


def _product(
    at: Lowering, a: list[str], left: Value, b: list[str], right: Value, later: set[str]
) -> tuple[list[str], Value]:
    """Return the labels and the product of two operands, summed over the labels that occur in both and not later."""
    batch = [x for x in a if x in b and x in later]
    summed = [x for x in a if x in b and x not in later]
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    left, right = _ordered(at, a, left, [*batch, *rows, *summed]), _ordered(at, b, right, [*batch, *summed, *columns])
    n, r, s, c = len(batch), len(rows), len(summed), len(columns)
    left_sizes = [at.size(left, i) for i in range(n + r + s)]
    right_sizes = [at.size(right, i) for i in range(n + s + c)]
    # The axes of a batch stay apart, so that MatMul broadcasts those of size 1.
    first = at.reshape(left, [*left_sizes[:n], at.mul(*left_sizes[n : n + r]), at.mul(*left_sizes[n + r :])])
    second = at.reshape(right, [*right_sizes[:n], at.mul(*right_sizes[n : n + s]), at.mul(*right_sizes[n + s :])])
    made = at.op.MatMul(first, second)
    labels = [*batch, *rows, *columns]
    sizes: list[int | Value] = [at.most(x, y) for x, y in zip(left_sizes[:n], right_sizes[:n], strict=True)]
    if r == 1 and c == 1:
        made.shape = ir.Shape([None] * len(labels))
        return labels, made
    return labels, at.reshape(made, [*sizes, *left_sizes[n : n + r], *right_sizes[n + s :]])
