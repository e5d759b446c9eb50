"""Let the native kernels multiply matrices: all on the tile unit of the processor, or gradients of weights only.

With tiles, a float32 is the sum of three bfloat16, and of the nine products of two such sums six are computed: the
result is as exact as a product of float32, in less than half of the time. Without, a kernel transposes the first factor
of a product that needs it transposed, and ONNX Runtime multiplies: its own products of that kind take more time.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.native.factors import Factor, factors, fit_tiles, need_turning
from onward.backends.onnxruntime.native.library import PARTS
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

    def __init__(self, threads: int, *, tiles: bool) -> None:
        self._threads = threads
        self._tiles = tiles

    def run(self, unit: Unit) -> bool:
        # What is computed twice must round alike in both places, where other nodes may stand behind it.
        alone = any((node.name or "").startswith(PREFIX) for node in unit.graph)

        def replace(node: ir.Node, op: Builder) -> bool:
            if self._tiles:
                return fit_tiles(node) and _replace(node, op, self._threads, alone=alone)
            return need_turning(node) and _replace_alone(node, op, self._threads)

        changed = [rewrite_nodes(unit, op_type, replace) for op_type in sorted(PARTS["products"])]
        return any(changed)


def _replace(node: ir.Node, op: Builder, threads: int, *, alone: bool) -> bool:
    both, bias = factors(node), (*node.inputs, None, None)[2]
    is_gemm = node.op_type == "Gemm"
    if both is None:
        return False
    if bias is not None and (node.attributes.get_float("beta", 1.0) != 1 or not _is_bias(bias, node.outputs[0])):
        return False
    end, also = node, None
    if not is_gemm and not alone and (add := only_reader(end.outputs[0], "Add") or _added(end.outputs[0])):
        other = add.inputs[1] if add.inputs[0] is end.outputs[0] else add.inputs[0]
        if other is not None and _is_bias(other, add.outputs[0]):
            end, bias = add, other
    if (relu := only_reader(end.outputs[0], "Relu")) is not None:
        end = also = relu
    edit.replace_node(end, op, _multiply(node, op, both, threads, bias=bias, also=also))
    return True


def _replace_alone(node: ir.Node, op: Builder, threads: int) -> bool:
    """Replace a product without what stands behind it, for which ONNX Runtime's own is as good."""
    both = factors(node)
    if both is None:
        return False
    edit.replace_node(node, op, _multiply(node, op, both, threads))
    return True


def _multiply(
    node: ir.Node,
    op: Builder,
    both: tuple[Factor, Factor],
    threads: int,
    *,
    bias: Value | None = None,
    also: ir.Node | None = None,
) -> tuple[Value, ...]:
    scale = node.attributes.get_float("alpha", 1.0) if node.op_type == "Gemm" else 1.0
    sizes = [*(f.turned for f in both), also is not None, int(np.float32(scale).view(np.int32)), threads]
    values = [f.value for f in both]
    name, inputs = ("Multiply", values) if bias is None else ("MultiplyBiased", [*values, bias])
    return native(op, name, inputs, sizes, also=also)


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
