"""Scan of a known length, written out: IREE's importer has none.

The gradients of LSTM, GRU and RNN are a Scan over the steps of the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

_LONGEST = 512  # steps: the compiler takes a time that grows with the number of nodes


def unroll(model: onnx.ModelProto) -> bool:
    """Write out each Scan of `model` whose number of steps is known, in place; return whether there was one.

    A longer one stays as it is, so that the compiler names it.
    """
    graph = model.graph
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.value_info)}
    nodes: list[onnx.NodeProto] = []
    changed = False
    for index, node in enumerate(graph.node):
        written = _written_out(node, f"scan{index}", sizes) if node.op_type == "Scan" and not node.domain else None
        nodes += [node] if written is None else written
        changed = changed or written is not None
    if changed:
        kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return changed


def _written_out(node: onnx.NodeProto, name: str, sizes: Mapping[str, list[int]]) -> list[onnx.NodeProto] | None:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    body: onnx.GraphProto = given["body"]
    scans = given["num_scan_inputs"]
    states = len(node.input) - scans
    outputs = len(node.output) - states
    axes = list(given.get("scan_input_axes", [0] * scans))
    length = _length(node.input[states:], axes, sizes)
    if length is None or not 0 < length <= _LONGEST:
        return None
    backwards = given.get("scan_input_directions", [0] * scans)
    made: list[onnx.NodeProto] = []

    def constant(label: str, value: object) -> str:
        array = numpy_helper.from_array(np.array(value, np.int64))
        made.append(helper.make_node("Constant", [], [f"{name}/{label}"], value=array))
        return f"{name}/{label}"

    shared = {}
    for tensor in body.initializer:
        shared[tensor.name] = f"{name}/{tensor.name}"
        made.append(helper.make_node("Constant", [], [shared[tensor.name]], value=tensor))
    state = list(node.input[:states])
    rows: list[list[str]] = [[] for _ in range(outputs)]
    for step in range(length):
        names = {**shared, **dict(zip((v.name for v in body.input), state, strict=False))}
        for number, (value, axis) in enumerate(zip(node.input[states:], axes, strict=True)):
            at = length - 1 - step if backwards[number] else step
            label = f"{name}/{step}/in{number}"
            made.append(helper.make_node("Gather", [value, constant(f"{step}/at{number}", at)], [label], axis=axis))
            names[body.input[states + number].name] = label
        for inner in body.node:
            names.update({output: f"{name}/{step}/{output}" for output in inner.output if output})
            made.append(_renamed(inner, names, f"{name}/{step}/"))
        results = [names.get(v.name, v.name) for v in body.output]
        state = results[:states]
        for row, result in zip(rows, results[states:], strict=True):
            row.append(result)
    made += [helper.make_node("Identity", [v], [o]) for v, o in zip(state, node.output[:states], strict=True) if o]
    reverse = given.get("scan_output_directions", [0] * outputs)
    stacked = given.get("scan_output_axes", [0] * outputs)
    for number, (row, output) in enumerate(zip(rows, node.output[states:], strict=True)):
        if output:
            axis = constant(f"axis{number}", [stacked[number]])
            parts = [f"{name}/out{number}/{k}" for k in range(length)]
            made += [helper.make_node("Unsqueeze", [v, axis], [p]) for v, p in zip(row, parts, strict=True)]
            order = parts[::-1] if reverse[number] else parts
            made.append(helper.make_node("Concat", order, [output], axis=stacked[number]))
    return made


def _length(values: list[str], axes: list[int], sizes: Mapping[str, list[int]]) -> int | None:
    """Return the number of steps; None if it is not known."""
    for value, axis in zip(values, axes, strict=True):
        shape = sizes.get(value)
        if shape and shape[axis]:
            return shape[axis]
    return None


def _renamed(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> onnx.NodeProto:
    """Return a copy of a node of a body that reads and writes the values of one step."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = f"{prefix}{node.name}" if node.name else ""
    copy.input[:] = [names.get(i, i) for i in node.input]
    copy.output[:] = [names.get(o, o) for o in node.output]
    for attribute in copy.attribute:
        if attribute.HasField("g"):  # ONNX forbids that an inner graph uses a name a second time
            inner = [_renamed(n, names, prefix) for n in attribute.g.node]
            del attribute.g.node[:]
            attribute.g.node.extend(inner)
            for value in attribute.g.output:
                value.name = names.get(value.name, value.name)
    return copy
