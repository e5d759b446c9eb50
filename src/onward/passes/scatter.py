"""Add what a scatter adds in float32."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph import edit, shapes, walk
from onward.passes.base import Pass, Unit

_SMALL = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class ScatterInFloat32(Pass):
    """Let each ScatterElements and ScatterND that adds (or multiplies, …) small floats do so in float32.

    Sums of 16 bits lose digits, and ONNX Runtime (1.31) has no kernel for them: the step of a float16 network with an
    embedding, a reflected pad or an overlapping max-pooling would fail when it runs.
    """

    def run(self, unit: Unit) -> bool:
        found = [n for n in walk.all_nodes(unit.graph) if _combines(n)]
        if any(n.inputs[0] is not None and n.inputs[0].dtype is None for n in found):
            shapes.infer_shapes(unit.model)
        changed = False
        for node in found:
            data, updates = node.inputs[0], node.inputs[2]
            if data is None or updates is None or data.dtype not in _SMALL:
                continue
            op = unit.builder(f"{node.name or node.op_type}/")
            operands = [op.Cast(data, to=ir.DataType.FLOAT), node.inputs[1], op.Cast(updates, to=ir.DataType.FLOAT)]
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            (wide,) = op.call(node.op_type, operands, **attributes)
            edit.replace_node(node, op, [op.Cast(wide, to=data.dtype)])
            changed = True
        return changed


def _combines(node: ir.Node) -> bool:
    scatters = node.op_type in ("ScatterElements", "ScatterND") and node.domain in ("", "ai.onnx")
    return scatters and node.attributes.get_string("reduction", "none") != "none"
