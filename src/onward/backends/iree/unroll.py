"""Scan and Loop of a known length, and If with a known condition, written out.

IREE's importer has no Scan, not every Loop, and no If whose branches give other sizes.

The gradients of LSTM, GRU and RNN are a Scan over the steps of the sequence; in core operators, so are they themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onward.backends.iree.writing import replace_nodes

_LONGEST = 512  # steps: the compiler takes a time that grows with the number of nodes


def unroll(model: onnx.ModelProto) -> bool:
    """Write out each Scan, Loop and If of `model` whose course is known, in place; return whether there was one.

    A Loop that is too long stays as it is, so that the compiler names it.
    """
    graph = model.graph
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.value_info)}
    known = {t.name: t for t in graph.initializer}
    known |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
    nodes: list[onnx.NodeProto] = []
    changed = False
    for index, node in enumerate(graph.node):
        written = None
        if not node.domain and node.op_type == "Scan":
            written = _scan(node, f"scan{index}", sizes)
        elif not node.domain and node.op_type == "Loop":
            written = _loop(node, f"loop{index}", known)
        elif not node.domain and node.op_type == "If":
            written = _branch(node, f"if{index}", known)
        nodes += [node] if written is None else written
        changed = changed or written is not None
    if changed:
        replace_nodes(graph, nodes)
    return changed


class _Writer:
    """Writes the body of one Scan or Loop again and again, or a branch of an If once."""

    def __init__(self, name: str, body: onnx.GraphProto) -> None:
        self.name, self.body = name, body
        self.made: list[onnx.NodeProto] = []
        self.shared: dict[str, str] = {}
        for tensor in body.initializer:
            self.shared[tensor.name] = f"{name}/{tensor.name}"
            self.add("Constant", [], self.shared[tensor.name], value=tensor)

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.made.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, label: str, value: object, kind: type = np.int64) -> str:
        return self.add("Constant", [], f"{self.name}/{label}", value=numpy_helper.from_array(np.array(value, kind)))

    def step(self, number: int, inputs: Sequence[str]) -> list[str]:
        """Write one step; return the names of its outputs."""
        names = {**self.shared, **dict(zip((v.name for v in self.body.input), inputs, strict=True))}
        for inner in self.body.node:
            names.update({output: f"{self.name}/{number}/{output}" for output in inner.output if output})
            self.made.append(_renamed(inner, names, f"{self.name}/{number}/"))
        return [names.get(v.name, v.name) for v in self.body.output]

    def finish(self, state: Sequence[str], outputs: Sequence[str]) -> None:
        """Give the last state the names of the outputs."""
        for value, output in zip(state, outputs, strict=True):
            if output:
                self.add("Identity", [value], output)

    def stack(self, number: int, rows: Sequence[str], output: str, axis: int = 0) -> None:
        """Write an output that has a row for each step."""
        if output:
            at = self.constant(f"axis{number}", [axis])
            parts = [self.add("Unsqueeze", [v, at], f"{self.name}/out{number}/{k}") for k, v in enumerate(rows)]
            self.add("Concat", parts, output, axis=axis)


def _scan(node: onnx.NodeProto, name: str, sizes: Mapping[str, list[int]]) -> list[onnx.NodeProto] | None:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    scans = given["num_scan_inputs"]
    states = len(node.input) - scans
    outputs = len(node.output) - states
    axes = list(given.get("scan_input_axes", [0] * scans))
    length = _length(node.input[states:], axes, sizes)
    if length is None or not 0 < length <= _LONGEST:
        return None
    backwards = given.get("scan_input_directions", [0] * scans)
    writer = _Writer(name, given["body"])
    state = list(node.input[:states])
    rows: list[list[str]] = [[] for _ in range(outputs)]
    for step in range(length):
        slices = []
        for number, (value, axis) in enumerate(zip(node.input[states:], axes, strict=True)):
            at = writer.constant(f"{step}/at{number}", length - 1 - step if backwards[number] else step)
            slices.append(writer.add("Gather", [value, at], f"{name}/{step}/in{number}", axis=axis))
        results = writer.step(step, [*state, *slices])
        state = results[:states]
        for row, result in zip(rows, results[states:], strict=True):
            row.append(result)
    writer.finish(state, node.output[:states])
    reverse = given.get("scan_output_directions", [0] * outputs)
    stacked = given.get("scan_output_axes", [0] * outputs)
    for number, (row, output) in enumerate(zip(rows, node.output[states:], strict=True)):
        writer.stack(number, row[::-1] if reverse[number] else row, output, stacked[number])
    return writer.made


def _loop(node: onnx.NodeProto, name: str, known: Mapping[str, onnx.TensorProto]) -> list[onnx.NodeProto] | None:
    """Write out a Loop that ends after a known number of steps and not by its condition."""
    count, condition, *start = [*node.input, "", ""][: max(2, len(node.input))]
    body: onnx.GraphProto = helper.get_node_attr_value(node, "body")
    if count not in known or (condition and not _is_true(known.get(condition))) or not _goes_on(body):
        return None
    length = int(numpy_helper.to_array(known[count]).item())
    if not 0 < length <= _LONGEST:
        return None
    writer = _Writer(name, body)
    go = writer.constant("go", True, np.bool_)
    state = list(start)
    rows: list[list[str]] = [[] for _ in range(len(node.output) - len(start))]
    for step in range(length):
        _, *results = writer.step(step, [writer.constant(f"{step}/number", step), go, *state])
        state = results[: len(start)]
        for row, result in zip(rows, results[len(start) :], strict=True):
            row.append(result)
    writer.finish(state, node.output[: len(start)])
    for number, (row, output) in enumerate(zip(rows, node.output[len(start) :], strict=True)):
        writer.stack(number, row, output)
    return writer.made


def _branch(node: onnx.NodeProto, name: str, known: Mapping[str, onnx.TensorProto]) -> list[onnx.NodeProto] | None:
    """Write out the branch that an If with a known condition takes."""
    condition = known.get(node.input[0])
    if condition is None:
        return None
    taken = "then_branch" if _is_true(condition) else "else_branch"
    writer = _Writer(name, helper.get_node_attr_value(node, taken))
    writer.finish(writer.step(0, []), node.output)
    return writer.made


def _goes_on(body: onnx.GraphProto) -> bool:
    """Return whether the condition that a body gives is always true: the one that it is given, or a constant."""
    given, result = body.input[1].name, body.output[0].name
    makers = {o: n for n in body.node for o in n.output}
    while result in makers and makers[result].op_type == "Identity":
        result = makers[result].input[0]
    maker = makers.get(result)
    if maker is not None and maker.op_type == "Constant":
        return _is_true(maker.attribute[0].t)
    return result == given or _is_true(next((t for t in body.initializer if t.name == result), None))


def _is_true(tensor: onnx.TensorProto | None) -> bool:
    return (
        tensor is not None and tensor.data_type == onnx.TensorProto.BOOL and bool(numpy_helper.to_array(tensor).all())
    )


def _length(values: Sequence[str], axes: list[int], sizes: Mapping[str, list[int]]) -> int | None:
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
