"""Merge nodes that compute the same."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from onward.graph.builder import Value
from onward.graph.edit import replace_uses, set_inputs

SMALL = 10  # elements; larger constants are not compared
_RANDOM = {"RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Multinomial"}


def merge_equal_nodes(graph: ir.Graph) -> bool:
    """Merge the nodes of `graph` (not of its subgraphs) that are equal in operator, inputs and attributes.

    Returns whether there were any. The names of the graph's outputs stay. onnx-ir's pass does the same, but looks at
    all outputs of the graph for each node that it removes.
    """
    first: dict[Hashable, ir.Node] = {}
    replaced: dict[Value, Value] = {}
    merged: list[ir.Node] = []
    for node in graph:
        key = _key(node, replaced)
        if key is not None and first.setdefault(key, node) is not node:
            replaced.update(zip(node.outputs, first[key].outputs, strict=True))
            merged.append(node)
    _keep_output_names(graph, replaced)
    replace_uses(replaced)
    for node in merged:
        set_inputs(node, [])
    graph.remove(merged, safe=True)
    return bool(merged)


def _keep_output_names(graph: ir.Graph, replaced: dict[Value, Value]) -> None:
    """Let the graph return the values that stand for its outputs; a value that is returned already is copied."""
    places = [i for i, output in enumerate(list(graph.outputs)) if output in replaced]
    for place in places:
        old = graph.outputs[place]
        new = replaced[old]
        if new.is_graph_output() or new.is_graph_input():
            copy = ir.Node("", "Identity", [new], num_outputs=1)
            copy.outputs[0].type, copy.outputs[0].shape = old.type, old.shape
            producer = old.producer()
            assert producer is not None
            graph.insert_before(producer, copy)
            new = copy.outputs[0]
        name, old.name = old.name, None
        new.name = name
        graph.outputs[place] = new


def _key(node: ir.Node, replaced: dict[Value, Value]) -> Hashable | None:
    """Return what equal nodes have in common; None for a node that is not to be merged."""
    if node.op_type in _RANDOM and node.domain == "":
        return None
    attributes: list[tuple[str, Hashable]] = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
            value = tuple(value)
        elif attribute.type is ir.AttributeType.TENSOR:
            if value.size > SMALL:
                return None
            array = value.numpy()
            value = (array.shape, str(array.dtype), array.tobytes())
        attributes.append((name, value))
    inputs = tuple(None if v is None else id(replaced.get(v, v)) for v in node.inputs)
    return (node.op_identifier(), len(node.outputs), inputs, tuple(attributes))
