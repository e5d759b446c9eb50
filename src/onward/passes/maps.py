"""Replace maps from class to probability by plain tensors."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.edit import replace_node
from onward.graph.walk import unmapped
from onward.passes.base import Pass, Unit


class MapsToTensors(Pass):
    """Replace each ZipMap by the tensor that it reads.

    skl2onnx ends a classifier in a ZipMap: a sequence of maps, which no metric and no table of predictions can read.
    The inference model keeps it.
    """

    def run(self, unit: Unit) -> bool:
        found = [n for n in unit.graph if unmapped(n.outputs[0]) is not n.outputs[0]]
        for node in found:
            op = unit.builder(f"{node.name or node.op_type}/")
            data = node.inputs[0]
            assert data is not None
            made = op.Identity(data)
            made.type, made.shape = data.type or ir.TensorType(ir.DataType.FLOAT), data.shape  # ZipMap reads float
            replace_node(node, op, [made])
        return bool(found)


__all__ = ["MapsToTensors"]
