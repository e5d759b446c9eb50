"""The backward of a body that runs once per step: what the rules of Loop and Scan have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from onward.autodiff import control_flow as flow
from onward.autodiff.engine import FLOAT_OR_ANY, find_slice
from onward.autodiff.rule import Rule
from onward.autodiff.shapes import scan_attribute
from onward.graph import walk
from onward.graph.builder import Value


class Steps:
    """The steps of a Loop or a Scan, and their gradients.

    A step reads its states, its own slices of the scan inputs, and what the body captures. It writes the next states
    and its slices of the scan outputs. The backward step carries the gradients of the states and one sum per captured
    value, and writes the gradients of the scan inputs.

    A rule calls `differentiate` and `finish`, wires the residuals, makes the backward node from `starts`, and returns
    `gradients`.
    """

    def __init__(
        self, rule: Rule, given: Sequence[Value | None], *, states: int, first_input: int = 0, first_output: int = 0
    ) -> None:
        """Collect what the body reads and which states carry a gradient.

        `given` are the gradients of the node's outputs. `first_input` and `first_output` are the positions of the first
        state among the body's inputs and outputs.
        """
        self.rule, self.given = rule, given
        self.body = rule.node.attributes["body"].as_graph()
        inputs, outputs = list(self.body.inputs)[first_input:], list(self.body.outputs)[first_output:]
        active = [flow.is_active(rule, value) for value in rule.node.inputs[first_input:]]
        self.pairs = list(zip(inputs[:states], outputs[:states], strict=True))
        self.scan_inputs = [v for v, wanted in zip(inputs[states:], active[states:], strict=True) if wanted]
        self.scan_outputs = {k: outputs[k] for k in range(states, len(given)) if given[k] is not None}
        self.captures = flow.active_captures(rule, self.body)
        started = [k for k in range(states) if active[k]]
        ended = [k for k in range(states) if given[k] is not None]
        self.carried = sorted(self._depends_on_wrt(started) & self._leads_to_result(ended))
        self.state_inputs = [self.pairs[k][0] for k in self.carried]
        self.state_outputs = [self.pairs[k][1] for k in self.carried]
        self.sweep = flow.start_body(rule)
        self.op = self.sweep.op
        self.dstates: list[Value] = []
        self.sums: list[Value] = []
        self.summed: list[Value] = []  # captured values that get a gradient
        self.written: list[Value] = []  # scan inputs that get a gradient
        self.results: list[Value] = []

    def _depends_on_wrt(self, started: Iterable[int]) -> set[int]:
        """Return the states that depend on something in `wrt`, given those that start so."""

        def reached(known: set[int]) -> set[int]:
            wrt = [*self.scan_inputs, *self.captures, *(self.pairs[k][0] for k in known)]
            active = find_slice([out for _, out in self.pairs], wrt, [], self.body).active
            return {k for k, (_, out) in enumerate(self.pairs) if out in active and out.dtype in FLOAT_OR_ANY}

        return _closure(started, reached)

    def _leads_to_result(self, ended: Iterable[int]) -> set[int]:
        """Return the states on which the result depends, given those whose last value it depends on."""

        def reached(known: set[int]) -> set[int]:
            wanted = [*self.scan_outputs.values(), *(self.pairs[k][1] for k in known)]
            read = {*wanted, *(v for n in walk.ancestors(wanted) if n.graph is self.body for v in walk.reads(n))}
            return {k for k, (start, _) in enumerate(self.pairs) if start in read}

        return _closure(ended, reached)

    def differentiate(self, dscan_outputs: Iterable[Value], like: Sequence[Value]) -> None:
        """Emit the backward of one step, given the gradients of its scan outputs.

        The gradients of the states become inputs of the backward body, with the types and shapes of `like`.
        """
        op = self.op
        named = zip(like, self.state_outputs, strict=True)
        self.dstates = [flow.body_input(op, value, f"d{output.name}") for value, output in named]
        seeds = [
            *zip(self.state_outputs, self.dstates, strict=True),
            *zip(self.scan_outputs.values(), dscan_outputs, strict=True),
        ]
        wrt = [*self.state_inputs, *self.scan_inputs, *self.captures]
        grads = flow.differentiate_body(self.sweep, self.body, seeds, wrt)
        self.summed = [v for v in self.captures if v in grads]
        self.written = [v for v in self.scan_inputs if v in grads]
        self.sums = [flow.body_input(op, v, f"sum/{v.name}") for v in self.summed]
        self.results = flow.or_zeros(op, grads, self.state_inputs)
        self.results += [flow.accumulate(op, s, grads[v]) for s, v in zip(self.sums, self.summed, strict=True)]
        self.results += [grads[v] for v in self.written]

    def finish(self, *further: Value) -> flow.BodyGradient:
        """Return the backward body and the residuals that it reads; `further` are values that it keeps as well."""
        return flow.finish_body(self.sweep, self.body, [*self.results, *further])

    def starts(self) -> list[Value]:
        """Return what the backward node carries at first: the gradients of the last states, and zeros as sums."""
        rule, given = self.rule, self.given
        last = [(given[k], rule.node.outputs[k]) for k in self.carried]
        dlast = [rule.zeros_like(output) if grad is None else grad for grad, output in last]
        return dlast + [rule.zeros_like(v) for v in self.summed]

    def gradients(self, made: Sequence[Value]) -> tuple[list[Value | None], list[tuple[Value, Value]]]:
        """Return the gradients of the node's inputs and of captured values, given the backward node's outputs."""
        node, formals = self.rule.node, list(self.body.inputs)
        by_formal = dict(zip([*self.state_inputs, *self.summed, *self.written], made, strict=True))
        by_input = [by_formal.get(formal) for formal in formals]
        captured = [(v, by_formal[v]) for v in self.summed]
        for value, grad in [*zip(node.inputs, by_input, strict=True), *captured]:
            if value is not None and grad is not None:
                grad.type, grad.shape = value.type, value.shape
        return by_input, captured


def _closure(start: Iterable[int], reached: Callable[[set[int]], set[int]]) -> set[int]:
    """Return `start` and all that can be reached from it."""
    found = set(start)
    while new := reached(found) - found:
        found |= new
    return found


def stack_residual(rule: Rule, body: ir.Graph, residual: Value, states: int) -> Value:
    """Return the scan output of the rule's node that holds `residual` of every step, first to last on axis 0."""
    node, names = rule.node, rule.op.names
    count = len(node.outputs) - states
    axes, directions = (scan_attribute(node, f"scan_output_{kind}", count) for kind in ("axes", "directions"))
    for position, value in enumerate(body.outputs[len(body.outputs) - count :]):
        if value is residual and axes[position] == 0 and directions[position] == 0:
            return node.outputs[states + position]
    inner = residual
    if inner.producer() is None or inner in body.outputs:
        copy = ir.Node("", "Identity", [residual], num_outputs=1, name=names.unique(f"{node.name}/keep"))
        inner = copy.outputs[0]
        inner.name = names.unique(f"{node.name or node.op_type}/keep/{residual.name}")
        inner.type, inner.shape = residual.type, residual.shape
        body.append(copy)
    body.outputs.append(inner)
    (output,) = flow.grow_outputs(node, [names.unique(f"{node.name or node.op_type}/residual/{residual.name}")])
    output.type = residual.type
    output.shape = None if residual.shape is None else ir.Shape([None, *residual.shape])
    for attribute in ("scan_output_axes", "scan_output_directions"):
        if attribute in node.attributes:
            node.attributes[attribute] = ir.AttrInt64s(attribute, [*node.attributes[attribute].as_ints(), 0])
    return output
