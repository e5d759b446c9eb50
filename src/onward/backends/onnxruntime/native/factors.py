"""Which products of matrices the native kernels compute."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onward.graph import shapes
from onward.graph.builder import Value

SMALLEST = 32
"""Rows, columns and depth from which on a product is one for tiles, which hold that many."""
TURN_FROM = (64, 256)
"""Rows and columns from which on a product is faster with its first factor transposed beforehand (products.h)."""


class Factor(NamedTuple):
    """A matrix of a product: a value, or its transpose."""

    value: Value
    turned: bool


def factors(node: ir.Node) -> tuple[Factor, Factor] | None:
    """Return the matrices that a Gemm or MatMul of float32 multiplies, without the transpositions in front of it."""
    A, B = node.inputs[:2]
    if A is None or B is None or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    turned = [node.op_type == "Gemm" and bool(node.attributes.get_int(f"trans{name}", 0)) for name in "AB"]
    return _factor(A, turned[0]), _factor(B, turned[1])


def _factor(value: Value, turned: bool) -> Factor:
    inner = _before_transpose(value)
    return Factor(value, turned) if inner is None else Factor(inner, not turned)


def _before_transpose(value: Value) -> Value | None:
    """Return what a Transpose of the last two dimensions reads, if `value` is its result."""
    node = value.producer()
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    order = list(node.attributes.get_ints("perm", ()))
    last = len(order)
    return node.inputs[0] if last >= 2 and order == [*range(last - 2), last - 1, last - 2] else None


def fit_tiles(node: ir.Node) -> bool:
    """Return whether the product is not known to be too small for tiles."""
    sizes = [(None, None) if v is None else shapes.dims(v) or (None, None) for v in node.inputs[:2]]
    if any(len(dims) < 2 for dims in sizes):
        return False
    return all(not isinstance(size, int) or size >= SMALLEST for dims in sizes for size in dims[-2:])


def need_turning(node: ir.Node) -> bool:
    """Return whether the product of two matrices needs the first one transposed, and is known to be large.

    Gradients of weights are such products. Their depth is the batch, so it is not known.
    """
    both = factors(node)
    if both is None or not both[0].turned or (node.op_type == "Gemm" and len(node.inputs) > 2):
        return False
    sizes = [shapes.dims(f.value) or () for f in both]
    if any(len(dims) != 2 for dims in sizes):
        return False
    rows, columns = sizes[0][1], sizes[1][0 if both[1].turned else 1]
    return all(isinstance(n, int) and n >= least for n, least in zip((rows, columns), TURN_FROM, strict=True))
