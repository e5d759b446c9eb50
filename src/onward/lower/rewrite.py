"""Replace a node by what a builder made; names and uses of its outputs are kept."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.model.builder import Builder, Value


def replace_node(node: ir.Node, op: Builder, outputs: Sequence[Value]) -> None:
    """Put the nodes of `op` in the place of `node`, and let `outputs` have its outputs' names and uses."""
    graph = node.graph
    assert graph is not None
    made = set(op.nodes)
    finals: list[Value] = []
    for value in outputs:
        producer = value.producer()
        if producer not in made or producer.op_type == "Constant" or value in finals:
            value = op.Identity(value)
        finals.append(value)
    graph.insert_before(node, op.nodes)
    for old, new in zip(node.outputs, finals, strict=False):
        name = old.name
        if new.type is None:
            new.type = old.type
        if new.shape is None:
            new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
        new.name = name
    graph.remove(node, safe=True)
