"""Loop: the backward runs the iterations in reverse on the residuals that the forward Loop kept."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff import control_flow as flow
from onward.autodiff import sequences
from onward.autodiff.emit import Emitter, subgraph_input
from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.shapes import is_invariant
from onward.autodiff.steps import Steps, stack_residual
from onward.autodiff.types import Grads
from onward.graph import walk
from onward.graph.builder import Value


@gradient("Loop", opset=11, M=NON_DIFFERENTIABLE, cond=NON_DIFFERENTIABLE)
def loop(rule: Rule, *dv_final_and_scan_outputs: Value | None) -> Grads:
    """v[t+1], y[t] = body(t, v[t]) for t < T, so the backward is a Loop over t = T-1 … 0.

    It carries dv and the gradients of the captured values. The residuals of iteration t are element t of further
    outputs of the forward Loop: a scan output if the residual has the same shape in all iterations, else a sequence.
    """
    if len(rule.node.inputs) < 2:
        rule.node.resize_inputs(2)
    states = len(rule.node.inputs) - 2
    steps = Steps(rule, dv_final_and_scan_outputs, states=states, first_input=2, first_output=1)
    _refuse_optionals(steps.state_inputs)
    counter = _Counter(steps.op)
    steps.differentiate(_elements(steps, counter.iteration), like=steps.state_outputs)
    if not steps.results:
        return {}
    found = steps.finish(counter.iteration)
    trips = _wire_residuals(found, steps, counter)
    by_input, captured = steps.gradients(_run_backwards(found, steps, counter, trips))
    return {"v_initial": by_input[2:], "captured": captured}


class _Counter:
    """The counters of the backward body: `step` goes from 0 to T - 1, `iteration` from T - 1 to 0."""

    def __init__(self, op: Emitter) -> None:
        self.step = subgraph_input(op, "step", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
        self.going = subgraph_input(op, "going", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
        self.last = ir.Value(name="", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))  # replaced by T - 1
        self.iteration = op.Sub(self.last, self.step, name="iteration")
        self.iteration.shape = ir.Shape([])


def _elements(steps: Steps, iteration: Value) -> list[Value]:
    """Return the gradients of the scan outputs in one iteration."""
    elements = []
    for index, output in steps.scan_outputs.items():
        element = steps.op.Gather(steps.given[index], iteration, axis=0)
        element.shape = output.shape
        elements.append(element)
    return elements


def _wire_residuals(found: flow.BodyGradient, steps: Steps, counter: _Counter) -> Value:
    """Make the backward body read the residuals of its iteration; return the number of iterations."""
    rule, body = steps.rule, steps.body
    trips = _trip_count(rule, body)
    accessors, fetches = _residuals(rule, body, found.residuals, counter.iteration, steps.op)
    if trips is None:
        trips = _count_residuals(rule, body, accessors)
    last = rule.op.Sub(trips, 1, name="last")
    last.shape = ir.Shape([])
    subtraction = counter.iteration.producer()
    assert subtraction is not None
    found.op.nodes.remove(subtraction)
    subtraction.replace_input_with(0, last)
    found.replace(accessors, first=[subtraction, *fetches])
    return trips


def _run_backwards(found: flow.BodyGradient, steps: Steps, counter: _Counter, trips: Value) -> tuple[Value, ...]:
    """Emit the backward Loop."""
    results = found.grads[:-1]
    going = steps.op.Identity(counter.going)
    going.type, going.shape = counter.going.type, ir.Shape([])
    inputs = [counter.step, counter.going, *steps.dstates, *steps.sums]
    graph = flow.make_graph(found.op, inputs, [going, *results], "backward")
    return steps.rule.op.call("Loop", [trips, None, *steps.starts()], outputs=len(results), body=graph)


def _refuse_optionals(states: list[Value]) -> None:
    """Raise Unsupported if a state is optional."""
    for state in states:
        if isinstance(state.type, ir.OptionalType):
            raise Unsupported(
                f"the Loop carries the optional `{state.name}`, which has no gradient while it is empty; "
                "carry a tensor or a sequence instead"
            )


def _trip_count(rule: Rule, body: ir.Graph) -> Value | None:
    """Return the number of iterations as a scalar, or None if it depends on what the body computes."""
    limit, condition = rule.node.inputs[0], rule.node.inputs[1]
    going = body.outputs[0]
    starts_true = condition is None or _is_true(condition)
    stays_true = _is_true(going) or _is_input(going, body.inputs[1])
    if limit is None or not starts_true or not stays_true:
        return None
    if limit.shape is not None and len(limit.shape) == 0:
        return limit
    return rule.op.Reshape(limit, np.array([], np.int64))


def _is_input(value: Value, formal: Value) -> bool:
    node = value.producer()
    return value is formal or (node is not None and node.op_type == "Identity" and node.inputs[0] is formal)


def _is_true(value: Value) -> bool:
    array = walk.constant_of(value)
    return array is not None and bool(np.all(array))


def _residuals(
    rule: Rule, body: ir.Graph, residuals: list[Value], iteration: Value, inside: Emitter
) -> tuple[dict[Value, Value], list[ir.Node]]:
    """Return the value in the backward body for each residual, and the nodes that fetch these values."""
    op = Emitter(inside.opset, inside.names, prefix=inside.prefix)
    accessors: dict[Value, Value] = {}
    for residual in residuals:
        if residual is body.inputs[0]:
            listed = residual.shape is not None and len(residual.shape) == 1
            accessors[residual] = op.Reshape(iteration, np.array([1], np.int64)) if listed else iteration
            continue
        if is_invariant(residual, body):
            stacked = stack_residual(rule, body, residual, len(rule.node.inputs) - 2)
            fetched = op.Gather(stacked, iteration, axis=0, name=f"residual/{residual.name}")
        elif isinstance(residual.type, ir.SequenceType):
            packer = Emitter(inside.opset, inside.names, prefix=f"{rule.node.name or 'Loop'}/residual/{residual.name}/")
            vectors = sequences.pack(packer, residual)
            body.extend(packer.nodes)
            fetched = sequences.unpack(op, *(_at(op, _keep_in_sequence(rule, body, v), v, iteration) for v in vectors))
        else:
            fetched = _at(op, _keep_in_sequence(rule, body, residual), residual, iteration)
        fetched.type, fetched.shape = residual.type, residual.shape
        accessors[residual] = fetched
    return accessors, op.nodes


def _at(op: Emitter, kept: Value, residual: Value, iteration: Value) -> Value:
    """Return the element of the sequence `kept` that holds `residual` of one iteration."""
    fetched = op.SequenceAt(kept, iteration, name=f"residual/{residual.name}")
    fetched.type, fetched.shape = residual.type, residual.shape
    return fetched


def _keep_in_sequence(rule: Rule, body: ir.Graph, residual: Value) -> Value:
    """Return a new output of the Loop: a sequence of `residual` from every iteration, whose shape may change."""
    node, names = rule.node, rule.op.names
    if not isinstance(residual.type, ir.TensorType):
        raise Unsupported(
            f"the backward needs the optional `{residual.name}` from every iteration of the Loop, but ONNX has no "
            "sequences of optionals; carry a tensor or a sequence instead"
        )
    graph = node.graph
    assert graph is not None
    base = f"{node.name or 'Loop'}/residual/{residual.name}"
    sequence = ir.SequenceType(residual.type)
    empty = ir.Node(
        "", "SequenceEmpty", [], [ir.AttrInt64("dtype", residual.type.dtype.value)], name=names.unique(f"{base}/empty")
    )
    before = ir.Value(name=names.unique(f"{base}/before"), type=sequence)
    insert = ir.Node("", "SequenceInsert", [before, residual], name=names.unique(f"{base}/insert"))
    after = insert.outputs[0]
    after.name = names.unique(f"{base}/after")
    empty.outputs[0].name = names.unique(f"{base}/empty:out")
    for value in (after, empty.outputs[0]):
        value.type = sequence
    graph.insert_before(node, empty)
    states = len(node.inputs) - 2
    node.resize_inputs(len(node.inputs) + 1)
    node.replace_input_with(len(node.inputs) - 1, empty.outputs[0])
    body.inputs.append(before)
    body.append(insert)
    body.outputs.insert(1 + states, after)
    (output,) = flow.grow_outputs(node, [names.unique(base)], states)
    output.type = sequence
    return output


def _count_residuals(rule: Rule, body: ir.Graph, accessors: dict[Value, Value]) -> Value:
    """Return the number of iterations of the forward Loop, from the length of an output with one entry for each."""
    node, op = rule.node, rule.op
    states = len(node.inputs) - 2
    stacked = next((output for output in node.outputs[states:] if output.name), None)
    for accessor in accessors.values() if stacked is None else ():
        fetch = accessor.producer()
        if fetch is not None and fetch.op_type == "SequenceAt":
            return op.SequenceLength(fetch.inputs[0])
    if stacked is None:
        stacked = stack_residual(rule, body, body.inputs[0], states)
    return op.Squeeze(op.Shape(stacked, start=0, end=1), np.array([0], np.int64))
