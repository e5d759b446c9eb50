"""Scattering gradients, for the rules of operators that only move elements.

An operator that copies elements (Gather, Pad, Slice, Compress) can run on the *positions* of its input instead of its
values. Its output is then the source of each element, and ScatterElements(add) adds the gradient there. ScatterND(add)
would be shorter, but stock ONNX Runtime has a data race in it with more than one thread.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.rule import Rule
from onward.graph.builder import Value


def size_of(rule: Rule, value: Value) -> Value:
    """Return the number of elements as an int64 scalar: a constant if it is known."""
    static = rule.static_shape(value)
    if static is not None:
        return rule.op.constant(np.array(int(np.prod(static)), np.int64))
    return rule.op.Size(value)


def as_vector(rule: Rule, scalar: Value) -> Value:
    """Return a scalar as a vector of one element; a constant stays a constant."""
    known = None if scalar.const_value is None else scalar.const_value.numpy()
    return rule.op.Reshape(scalar, [1]) if known is None else rule.op.constant(known.reshape(1))


def flat(rule: Rule, value: Value) -> Value:
    """Return all elements as a vector."""
    return value if rule.rank(value) == 1 else rule.op.Reshape(value, [-1])


def positions(rule: Rule, data: Value) -> Value:
    """Return an int64 tensor of the shape of `data` that numbers its elements in order."""
    numbers = rule.op.Range(0, size_of(rule, data), 1)
    return numbers if rule.rank(data) == 1 else rule.reshape_like(numbers, data)


def zeros(rule: Rule, shape: Value, dtype: ir.DataType | None) -> Value:
    """Return zeros of a shape given as a value."""
    return rule.op.ConstantOfShape(shape, value=np.zeros(1, (dtype or ir.DataType.FLOAT).numpy()))


def scatter_elements(rule: Rule, data: Value, source: Value, grad: Value) -> Value:
    """Return zeros like `data` with each element of `grad` added at the position that `source` gives for it."""
    op = rule.op
    empty = zeros(rule, as_vector(rule, size_of(rule, data)), grad.dtype)
    added = op.ScatterElements(empty, flat(rule, source), flat(rule, grad), axis=0, reduction="add")
    return added if rule.rank(data) == 1 else rule.reshape_like(added, data)


def scatter_rows(rule: Rule, data: Value, rows: Value, grad: Value, axis: int, *, distinct: bool = False) -> Value:
    """Return zeros like `data` with slice k of `grad` along `axis` added at index `rows[k]` of that axis.

    `rows` may have any shape; in `grad`, its axes replace `axis`. With `distinct`, no row appears twice.
    """
    op = rule.op
    rank = rule.rank(data)
    if rank is not None and axis < 0:
        axis += rank
    count = as_vector(rule, size_of(rule, rows))
    index = flat(rule, rows)
    if rank == 1:
        like_data, column = flat(rule, grad), index
    else:
        before = _shape_part(rule, data, 0, axis)
        after = _shape_part(rule, data, axis + 1, None) if axis != -1 else op.constant(np.zeros(0, np.int64))
        static = [rule.op.constant(np.zeros(0, np.int64)) if v is None else v for v in (before, count, after)]
        shape = _concat(rule, static)
        like_data = grad if rule.rank(rows) == 1 else op.Reshape(grad, shape, allowzero=1)
        if rank is not None:
            tail: Value = op.constant(np.ones(rank - axis - 1, np.int64))
        else:
            tail = op.Expand(1, op.Shape(after))
        column = op.Expand(op.Reshape(index, _concat(rule, [op.constant(np.array([-1], np.int64)), tail])), shape)
    return op.ScatterElements(
        rule.zeros_like(data), column, like_data, axis=axis, reduction=None if distinct else "add"
    )


def _shape_part(rule: Rule, value: Value, start: int, end: int | None) -> Value:
    """Return the dimensions from `start` to `end` as a 1-D value: a constant if they are known."""
    dims = rule.dims(value)
    if dims is not None:
        part = dims[start:end]
        if all(isinstance(d, int) for d in part):
            return rule.op.constant(np.array(part, np.int64))
    return rule.op.Shape(value, start=start, end=end)


def _concat(rule: Rule, parts: list[Value]) -> Value:
    """Return the concatenation of 1-D int64 values: a constant if they all are constants."""
    known = [None if p.const_value is None else p.const_value.numpy() for p in parts]
    if all(k is not None for k in known):
        return rule.op.constant(np.concatenate([k for k in known if k is not None]).astype(np.int64))
    kept = [p for p, k in zip(parts, known, strict=True) if k is None or k.size]
    return kept[0] if len(kept) == 1 else rule.op.Concat(*kept, axis=0)
