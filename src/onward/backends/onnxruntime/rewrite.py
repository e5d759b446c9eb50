"""Rewrite nodes of a step graph for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from onward.graph import edit, walk
from onward.graph.builder import Builder, Names


def rewrite_nodes(model: onnx.ModelProto, op_type: str, rewrite: Callable[[ir.Node, Builder], bool]) -> onnx.ModelProto:
    """Return the graph after `rewrite` of every node of one type, or `model` itself if none was rewritten.

    `rewrite(node, op)` puts new nodes into the graph and says whether it did; what is dead then is removed.
    """
    if not any(n.op_type == op_type for n in model.graph.node):
        return model
    own = onnx.ModelProto()
    own.CopyFrom(model)  # onnx-ir keeps the tensors it is given
    work = ir.serde.deserialize_model(own)
    names, opset = Names(walk.all_names(work.graph)), work.graph.opset_imports[""]
    nodes = [n for n in work.graph if n.op_type == op_type and n.domain == ""]
    changed = [rewrite(node, Builder(opset, names, f"{node.name}/")) for node in nodes]
    if not any(changed):
        return model
    edit.remove_dead_nodes(work.graph)
    return ir.serde.serialize_model(work)
