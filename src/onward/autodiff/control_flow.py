"""The gradient of a body and its residuals: what the rules of If, Loop, Scan and SequenceMap have in common.

The gradient of a body is a list of nodes that read values of the forward body. Those values, the residuals, become
further outputs of the forward node, and the backward body reads them from there. Constants are copied instead. If only
the shape of a value is needed, the shape is the residual.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onward.autodiff import sequences
from onward.autodiff.emit import Emitter, subgraph_input
from onward.autodiff.engine import Backward, find_slice, gradient_type, zeros
from onward.autodiff.rule import Rule
from onward.graph import edit, walk
from onward.graph.builder import Builder, Value


@dataclasses.dataclass
class BodyGradient:
    """The backward of one body; `op.nodes` reads the residuals from the forward body until they are replaced."""

    op: Emitter
    grads: list[Value]
    residuals: list[Value]

    def replace(self, accessors: Mapping[Value, Value], first: Sequence[ir.Node] = ()) -> None:
        """Read `accessors[r]` instead of each residual r, and put the nodes `first` in front."""
        substitute(self.op.nodes, accessors)
        self.op.nodes[:0] = first
        self.grads = [accessors.get(g, g) for g in self.grads]

    def read_from_inputs(self) -> list[Value]:
        """Return one new input of the backward body for each residual, which is read from there."""
        inputs = [body_input(self.op, r, f"residual/{r.name}") for r in self.residuals]
        self.replace(dict(zip(self.residuals, inputs, strict=True)))
        return inputs


def is_active(rule: Rule, value: Value | None) -> bool:
    """Return whether `value` may carry a gradient: it depends on something in `wrt`."""
    assert rule.sweep is not None
    return value is not None and rule.sweep.wants(value)


def active_captures(rule: Rule, *bodies: ir.Graph) -> list[Value]:
    """Return the values that the bodies capture and that may carry a gradient, each once."""
    found = dict.fromkeys(v for body in bodies for v in walk.captured(body))
    return [v for v in found if is_active(rule, v)]


def start_body(rule: Rule) -> Backward:
    """Return the sweep for a body of the rule's node."""
    assert rule.sweep is not None
    return rule.sweep.inner(rule.node)


def differentiate_body(
    sweep: Backward, body: ir.Graph, seeds: Sequence[tuple[Value, Value]], wrt: Sequence[Value]
) -> dict[Value, Value]:
    """Return the gradients with respect to those of `wrt` (inputs of the body or captured values) that have one.

    `seeds` are pairs of a value of the body and its gradient.
    """
    part = find_slice([value for value, _ in seeds], wrt, [], body)
    grads = zip(wrt, sweep.sweep(seeds, wrt, part), strict=True)
    return {value: grad for value, grad in grads if grad is not None}


def or_zeros(op: Emitter, grads: Mapping[Value, Value], values: Iterable[Value]) -> list[Value]:
    """Return the gradient of each value; zeros for a value without one."""
    return [grads[v] if v in grads else zeros(op, v) for v in values]


def finish_body(sweep: Backward, body: ir.Graph, results: Sequence[Value]) -> BodyGradient:
    """Return the backward body without unneeded nodes, and the residuals that it reads."""
    op = sweep.op
    op.nodes[:] = live(op.nodes, results)
    _copy_constants(op, body, results)
    residuals = _read_from(op.nodes, results, body)
    _keep_shapes_only(op, body, residuals)
    return BodyGradient(op, list(results), _read_from(op.nodes, results, body))


def live(nodes: Sequence[ir.Node], wanted: Iterable[Value]) -> list[ir.Node]:
    """Return the nodes that the wanted values need, in order, and detach the others."""
    inside = set(nodes)
    forward = [v for n in nodes for v in walk.reads(n) if v.producer() not in inside]
    needed = walk.ancestors(wanted, stop=forward)
    for node in nodes:
        if node not in needed:
            detach(node)
    return [n for n in nodes if n in needed]


def detach(node: ir.Node) -> None:
    """Remove all inputs of `node`, which is not in a graph, and of the nodes in its subgraphs."""
    for graph in walk.subgraphs(node):
        for inner in list(graph):
            detach(inner)
        graph.outputs.clear()
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)


def substitute(nodes: Iterable[ir.Node], values: Mapping[Value, Value]) -> None:
    """Make `nodes` and their subgraphs read `values[v]` instead of `v`."""
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is not None and value in values:
                node.replace_input_with(index, values[value])
        for graph in walk.subgraphs(node):
            substitute(graph, values)
            for index, value in enumerate(graph.outputs):
                if value in values:
                    graph.outputs[index] = values[value]


def _owned(value: Value, body: ir.Graph) -> bool:
    """Return whether `value` belongs to `body`: an input, an initializer or the output of one of its nodes."""
    node = value.producer()
    if node is not None:
        return node.graph is body
    return value in body.inputs or any(value is v for v in body.initializers.values())


def _read_from(nodes: Iterable[ir.Node], results: Sequence[Value], body: ir.Graph) -> list[Value]:
    """Return the values of `body` that the nodes read or that are results, each once."""
    found = dict.fromkeys(v for n in nodes for v in walk.reads(n))
    return [v for v in (found | dict.fromkeys(results)) if _owned(v, body)]


def _copy_constants(op: Emitter, body: ir.Graph, results: Sequence[Value]) -> None:
    """Copy the constants of `body` that the backward reads into the backward."""
    copies: dict[Value, Value] = {}
    nodes: list[ir.Node] = []
    for value in _read_from(op.nodes, results, body):
        node = value.producer()
        if node is not None and node.op_type == "Constant" and node.domain == "":
            nodes += edit.copy_nodes([node], copies, names=op.names, prefix=op.prefix)
        elif node is None and value.const_value is not None:
            constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], num_outputs=1)
            constant.name = op.names.unique(f"{op.prefix}{value.name}")
            copy = constant.outputs[0]
            copy.name = op.names.unique(f"{constant.name}:out")
            copy.type, copy.shape, copy.const_value = value.type, value.shape, value.const_value
            copies[value] = copy
            nodes.append(constant)
    substitute(op.nodes, copies)
    op.nodes[:0] = nodes


def _keep_shapes_only(op: Emitter, body: ir.Graph, residuals: Sequence[Value]) -> None:
    """Move `Shape` nodes into the forward body if nothing else in the backward reads their input."""
    by_input: dict[Value, list[ir.Node]] = {}
    others: set[Value] = set()
    for node in op.nodes:
        for value in walk.reads(node):
            if node.op_type == "Shape" and node.domain == "":
                by_input.setdefault(value, []).append(node)
            else:
                others.add(value)
    for value in residuals:
        if value in by_input and value not in others:
            for node in by_input[value]:
                op.nodes.remove(node)
                body.append(node)


def make_graph(op: Emitter, inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> ir.Graph:
    """Return a subgraph of the emitter's nodes; an output that comes from outside or repeats becomes an Identity."""
    own = set(op.nodes)
    seen: set[Value] = set()
    results = []
    for output in outputs:
        if output.producer() not in own or output in seen:
            (copy,) = Builder.call(op, "Identity", [output])  # a new one: the emitter would share equal nodes
            copy.type, copy.shape = output.type, output.shape
            output = copy
        seen.add(output)
        results.append(output)
    return ir.Graph(list(inputs), results, nodes=op.nodes, name=op.names.unique(f"{op.prefix}{name}"))


def body_input(op: Emitter, like: Value, name: str) -> Value:
    """Return a new input for a backward body, with the gradient type and the shape of `like`."""
    return subgraph_input(op, name, gradient_type(like), like.shape)


def accumulate(op: Emitter, total: Value, grad: Value) -> Value:
    """Return the sum of two gradients of one value."""
    if isinstance(total.type, ir.SequenceType):
        return sequences.add(op, total, grad)
    result = op.Add(total, grad, name="accumulate")
    result.shape = total.shape
    return result


def grow_outputs(node: ir.Node, names: Sequence[str], position: int | None = None) -> list[Value]:
    """Return new outputs of `node`, added at the end or before `position`; the others keep their uses."""
    before = len(node.outputs)
    node.resize_outputs(before + len(names))
    made = list(node.outputs[before:])
    for value, name in zip(made, names, strict=True):
        value.name = name
    if position is not None:
        # onnx-ir only appends outputs; a Loop's carried values stand before its scan outputs.
        old = list(node.outputs[:before])
        node._outputs = (*old[:position], *made, *old[position:])
        for index, value in enumerate(node._outputs):
            value._index = index
    return made
