"""Scan as a Loop."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.emit import subgraph_input
from onward.graph import edit
from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

_LAST, _FIRST = (1 << 63) - 1, -(1 << 63)
INT64, BOOL = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)


@decomposition("Scan")
def scan(at: Lowering) -> list[Value]:
    """A Loop that gathers the slices of its step, and stacks its outputs."""
    op, scan_node = at.op, at.node
    body = scan_node.attributes["body"].as_graph()
    slices = int(at.attr("num_scan_inputs"))
    states = len(scan_node.inputs) - slices
    initial = [v for v in scan_node.inputs[:states] if v is not None]
    scanned = [v for v in scan_node.inputs[states:] if v is not None]
    outputs = len(scan_node.outputs) - states
    in_axes = at.attr("scan_input_axes") or [0] * slices
    in_back = at.attr("scan_input_directions") or [0] * slices
    out_axes = at.attr("scan_output_axes") or [0] * outputs
    out_back = at.attr("scan_output_directions") or [0] * outputs
    steps = op.Gather(op.Shape(scanned[0]), int(in_axes[0]), axis=0)
    inner = op.inner(f"{op.prefix}step/")
    step = subgraph_input(inner, "step", INT64, ir.Shape([]))
    go = subgraph_input(inner, "go", BOOL, ir.Shape([]))
    formal = [subgraph_input(inner, f"state_{i}", v.type, v.shape) for i, v in enumerate(body.inputs[:states])]
    for given, value in zip(formal, initial, strict=True):
        given.type = given.type or value.type
    values: dict[Value, Value] = dict(zip(body.inputs[:states], formal, strict=True))
    for position, value in enumerate(scanned):
        place = inner.Sub(inner.Sub(steps, 1), step) if in_back[position] else step
        part = inner.Gather(value, place, axis=int(in_axes[position]))
        part.type, part.shape = value.type, body.inputs[states + position].shape
        values[body.inputs[states + position]] = part
    for held in body.initializers.values():
        assert held.const_value is not None
        values[held] = inner.constant(held.const_value.numpy())
    prelude = list(inner.nodes)
    copies = edit.copy_nodes(body, values, names=op.names, prefix=inner.prefix)
    results: list[Value] = []
    for output in body.outputs:  # each must be made in the body, and once
        value = values.get(output, output)
        if value.producer() not in copies or value in results:
            node = ir.Node("", "Identity", [value], num_outputs=1, name=op.names.unique(f"{inner.prefix}Identity"))
            node.outputs[0].name = op.names.unique(f"{node.name}:out")
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            inner.nodes.append(node)
            value = node.outputs[0]
        results.append(value)
    on = inner.Identity(go)
    nodes = [*prelude, *copies, *inner.nodes[len(prelude) :]]
    graph = ir.Graph([step, go, *formal], [on, *results], nodes=nodes, name=f"{op.prefix}step")
    whole = op.call("Loop", [steps, op.constant(True), *initial], outputs=states + outputs, body=graph)
    for value, result in zip(whole, results, strict=True):
        value.type = result.type
    finals = list(whole[:states])
    for position, value in enumerate(whole[states:]):
        if out_back[position]:
            value = op.Slice(value, [_LAST], [_FIRST], [0], [-1])
        axis = int(out_axes[position])
        if axis:
            rank = at.rank_of(scan_node.outputs[states + position])
            axis %= rank
            value = op.Transpose(value, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
        finals.append(value)
    return finals
