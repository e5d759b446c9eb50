"""Move less: select before transposing, and write a transposed product as a product of transposed factors."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph import edit, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import NO_GRADIENTS, Pass, Unit, rewrite_nodes


class SelectBeforeTransposing(Pass):
    """Let a Gather of one index read what stands in front of a Transpose, where the other axes stay in order.

    PyTorch's attention stores queries, keys and values in one projection, moves their axis to the front, and selects.
    The axis can be selected where it is; then nothing has to be moved, neither here nor in the backward pass.
    """

    def run(self, unit: Unit) -> bool:
        nodes = [n for n in unit.graph if n.op_type == "Gather" and n.domain in ("", "ai.onnx")]
        changed = [_select(node, unit.builder(f"{node.name}/")) for node in nodes]
        return any(changed)


def _select(node: ir.Node, op: Builder) -> bool:
    data, index = node.inputs
    place = walk.constant_of(index)
    if data is None or data.shape is None or place is None or place.ndim:
        return False
    selected = node.attributes.get_int("axis", 0) % len(data.shape)
    order, value, found = list(range(len(data.shape))), data, None
    while (step := _in_front(value, order)) is not None:
        value, order = step
        rest = [axis for k, axis in enumerate(order) if k != selected]
        if value.shape is not None and len(value.shape) == len(order) and rest == sorted(rest):
            found = (value, order[selected])
    if found is None or found[1] == selected:
        return False
    edit.replace_node(node, op, [op.Gather(found[0], index, axis=found[1])])
    return True


def _in_front(value: Value, order: list[int]) -> tuple[Value, list[int]] | None:
    """Return what a node that only moves axes reads, and its axes in the order of `order`; None for any other node."""
    node = value.producer()
    source = None if node is None else node.inputs[0] if node.inputs else None
    if node is None or source is None or node.domain not in ("", "ai.onnx") or value.shape is None:
        return None
    if node.op_type == "Identity":
        return source, order
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm", tuple(reversed(range(len(value.shape)))))
        return source, [perm[axis] for axis in order]
    axes = walk.constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None or node.op_type not in ("Squeeze", "Unsqueeze"):
        return None
    if node.op_type == "Squeeze":
        rank = len(value.shape) + axes.size
        kept = [axis for axis in range(rank) if axis not in axes % rank]
        return source, [kept[axis] for axis in order]
    kept = [axis for axis in range(len(value.shape)) if axis not in axes % len(value.shape)]
    return (source, [kept.index(axis) for axis in order]) if all(axis in kept for axis in order) else None


_GEMM = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


class TransposeFactors(Pass):
    """Replace the transpose of a product Aᵀ B by the product Bᵀ A.

    So is the gradient of a weight that is transposed in front of its product. Runtimes read a transposed factor as it
    stands, but they write a transposed result in a pass of its own.
    """

    requires = (NO_GRADIENTS,)

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "Transpose", _transpose_factors)


def _transpose_factors(node: ir.Node, op: Builder) -> bool:
    product = _only_reader_of(node, "MatMul")
    if product is None or not _swaps(node):
        return False
    left, B = product.inputs
    turned = None if left is None else left.producer()
    if turned is None or B is None or B.shape is None or turned.op_type != "Transpose" or turned.domain:
        return False
    A = turned.inputs[0]
    if A is None or len(B.shape) != 2 or not _swaps(turned):
        return False
    if A.dtype in _GEMM:  # not a MatMul: ONNX Runtime fuses that with the Transpose, and runs what it fused last
        edit.replace_node(node, op, [op.Gemm(B, A, transA=1)])
    else:
        edit.replace_node(node, op, [op.MatMul(op.Transpose(B, perm=[1, 0]), A)])
    return True


def _only_reader_of(node: ir.Node, op_type: str) -> ir.Node | None:
    """Return the maker of what a node reads, if it is of this type and nothing else reads it."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if value is None or maker is None or maker.op_type != op_type or maker.domain:
        return None
    return maker if len(value.uses()) == 1 and not value.is_graph_output() else None


def _swaps(node: ir.Node) -> bool:
    """Return whether a Transpose swaps the axes of a matrix."""
    value = node.inputs[0]
    perm = node.attributes.get_ints("perm", (1, 0))
    return value is not None and value.shape is not None and len(value.shape) == 2 and tuple(perm) == (1, 0)
