"""Let the native kernels multiply matrices on the tile unit of the processor, where it has one.

A float32 is the sum of three bfloat16, and of the nine products of two such sums six are computed: the result is as
exact as a product of float32, in less than half of the time.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.native.library import PARTS, SMALLEST
from onward.backends.onnxruntime.native.nodes import native, only_reader
from onward.graph import edit, shapes
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes
from onward.passes.recompute.settings import PREFIX


class UseNativeProducts(Pass):
    """Replace Gemm and MatMul of float32, with the transpositions in front of them and the bias and Relu behind them.

    Products that are known to be small stay. Free sizes count as large: the first batch does not decide, because a run
    that is resumed may begin with another.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def run(self, unit: Unit) -> bool:
        # What is computed twice must round alike in both places, where other nodes may stand behind it.
        alone = any((node.name or "").startswith(PREFIX) for node in unit.graph)

        def replace(node: ir.Node, op: Builder) -> bool:
            return _replace(node, op, self._threads, alone=alone)

        changed = [rewrite_nodes(unit, op_type, replace) for op_type in sorted(PARTS["products"])]
        return any(changed)


def _replace(node: ir.Node, op: Builder, threads: int, *, alone: bool) -> bool:
    A, B, bias = (*node.inputs, None)[:3]
    if A is None or B is None or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    is_gemm, get = node.op_type == "Gemm", node.attributes.get_float
    scale = get("alpha", 1.0) if is_gemm else 1.0
    if bias is not None and (get("beta", 1.0) != 1 or not _is_bias(bias, node.outputs[0])):
        return False
    turned = [is_gemm and bool(node.attributes.get_int(f"trans{name}", 0)) for name in "AB"]
    if not _pays(A, B):
        return False
    factors = []
    for i, value in enumerate((A, B)):
        inner = _before_transpose(value)
        turned[i] ^= inner is not None
        factors.append(inner or value)
    end, also = node, None
    if not is_gemm and not alone and (add := only_reader(end.outputs[0], "Add") or _added(end.outputs[0])):
        other = add.inputs[1] if add.inputs[0] is end.outputs[0] else add.inputs[0]
        if other is not None and _is_bias(other, add.outputs[0]):
            end, bias = add, other
    if (relu := only_reader(end.outputs[0], "Relu")) is not None:
        end = also = relu
    sizes = [*turned, also is not None, int(np.float32(scale).view(np.int32)), threads]
    name, inputs = ("Multiply", factors) if bias is None else ("MultiplyBiased", [*factors, bias])
    made = native(op, name, inputs, sizes, also=also)
    edit.replace_node(end, op, made)
    return True


def _added(value: Value) -> ir.Node | None:
    """Return the Add that alone reads `value`, as its second input."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.op_type != "Add" or uses[0].node.domain:
        return None
    return uses[0].node


def _is_bias(value: Value, result: Value) -> bool:
    """Return whether `value` surely has a number for each column of the result, and nothing else."""
    dims, columns = shapes.dims(value), (shapes.dims(result) or (None,))[-1]
    return value.dtype == ir.DataType.FLOAT and isinstance(columns, int) and dims == (columns,)


def _before_transpose(value: Value) -> Value | None:
    """Return what a Transpose of the last two dimensions reads, if `value` is its result."""
    node = value.producer()
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    order = list(node.attributes.get_ints("perm", ()))
    last = len(order)
    return node.inputs[0] if last >= 2 and order == [*range(last - 2), last - 1, last - 2] else None


def _pays(A: Value, B: Value) -> bool:
    """Return whether the product is not known to be too small for tiles."""
    sizes = [shapes.dims(v) or (None, None) for v in (A, B)]
    if any(len(dims) < 2 for dims in sizes):
        return False
    return all(not isinstance(size, int) or size >= SMALLEST for dims in sizes for size in dims[-2:])
