"""Let a native kernel compute the gradient of a max-pooling.

The plain graph scatters dY to the Indices of the MaxPool, and ONNX Runtime's MaxPool takes ten times as long with
Indices as without. The kernel looks for the largest element of each window again.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.backends.onnxruntime.native.convolutions import geometry, image_dims
from onward.backends.onnxruntime.native.nodes import match, native, only_reader
from onward.graph import edit
from onward.graph.builder import Builder
from onward.passes.base import Pass, Unit, rewrite_nodes


class UseNativePools(Pass):
    """Replace the scatter to the Indices of a MaxPool of float32 images, and the Indices if nobody else reads them."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "MaxPool", _replace)


def _replace(node: ir.Node, op: Builder) -> bool:
    if len(node.outputs) < 2 or node.attributes.get_int("storage_order", 0) != 0:
        return False
    X, (Y, indices) = node.inputs[0], node.outputs
    given, made = image_dims(X), image_dims(Y)
    kernel = node.attributes.get_ints("kernel_shape", [])
    flat = only_reader(indices, "Reshape")
    if X is None or given is None or made is None or flat is None or len(kernel) != 2:
        return False
    how = geometry(node, given[1:], (kernel[0], kernel[1]))
    scatter, found = _only_scatter(flat.outputs[0]), dict[str, ir.Value]()
    end = None if scatter is None else only_reader(scatter.outputs[0], "Reshape")
    pattern = ("ScatterElements", ("ConstantOfShape",), flat.outputs[0], ("Reshape", "dY"))
    if how is None or scatter is None or end is None or not match(end.inputs[0], pattern, found):
        return False
    if image_dims(found["dY"]) != made or image_dims(end.outputs[0]) != given:
        return False
    behind = Builder(op.opset, op.names, f"{end.name}/")
    edit.replace_node(end, behind, native(behind, "PoolBack", [X, Y, found["dY"]], how.sizes()))
    edit.forget([scatter, flat])
    node.resize_outputs(1)
    return True


def _only_scatter(places: ir.Value) -> ir.Node | None:
    """Return the ScatterElements that alone reads these places."""
    uses = list(places.uses())
    if len(uses) != 1 or uses[0].node.op_type != "ScatterElements" or uses[0].idx != 1:
        return None
    return uses[0].node
