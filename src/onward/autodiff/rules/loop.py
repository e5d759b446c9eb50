"""Loop: any number of iterations, known or not, run backwards over what the forward Loop kept of each one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff import control_flow as flow
from onward.autodiff import sequences
from onward.autodiff.emit import Emitter
from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.shapes import is_invariant
from onward.autodiff.types import Grads
from onward.graph import walk
from onward.graph.builder import Value


@gradient("Loop", opset=11, M=NON_DIFFERENTIABLE, cond=NON_DIFFERENTIABLE)
def loop(rule: Rule, *dv_final_and_scan_outputs: Value | None) -> Grads:
    """v[t+1], y[t] = body(t, v[t]) for t < T, so the backward is a Loop over t = T-1 … 0.

    It carries dv and the sums for what the body captures. The residuals of iteration t are element t of further
    outputs of the forward Loop: a scan output where the residual has one shape in all iterations, else a sequence.
    """
    node, op = rule.node, rule.op
    body = node.attributes["body"].as_graph()
    if len(node.inputs) < 2:
        node.resize_inputs(2)
    count = len(node.inputs) - 2
    given = list(dv_final_and_scan_outputs)
    pairs = [(body.inputs[2 + k], body.outputs[1 + k]) for k in range(count)]
    captures = flow.active_captures(rule, body)
    scans = [k for k in range(count, len(given)) if given[k] is not None]
    carried = flow.carried_states(
        body,
        pairs,
        started=[k for k in range(count) if rule.needs("v_initial", k)],
        given=[k for k in range(count) if given[k] is not None],
        sources=captures,
        targets=[body.outputs[1 + k] for k in scans],
    )
    _refuse_optionals([pairs[k][0] for k in carried])

    sweep = flow.start_body(rule)
    inside = sweep.op
    step = _scalar(inside, "step", ir.DataType.INT64)
    going = _scalar(inside, "going", ir.DataType.BOOL)
    last = ir.Value(name="", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))  # T - 1, made below
    iteration = inside.Sub(last, step, name="iteration")
    iteration.shape = ir.Shape([])
    dstates = [flow.body_input(inside, pairs[k][1], f"d{pairs[k][1].name}") for k in carried]
    seeds = [(pairs[k][1], d) for k, d in zip(carried, dstates, strict=True)]
    for k in scans:
        element = inside.Gather(given[k], iteration, axis=0)
        element.shape = body.outputs[1 + k].shape
        seeds.append((body.outputs[1 + k], element))
    state_inputs = [pairs[k][0] for k in carried]
    grads = flow.differentiate_body(sweep, body, seeds, [*state_inputs, *captures])
    reached = [(c, g) for c, g in zip(captures, grads[len(carried) :], strict=True) if g is not None]
    totals = [flow.body_input(inside, c, f"sum/{c.name}") for c, _ in reached]
    results = [
        g if g is not None else flow.zeros(inside, v) for g, v in zip(grads[: len(carried)], state_inputs, strict=True)
    ]
    results += [flow.accumulate(inside, t, g) for t, (_, g) in zip(totals, reached, strict=True)]
    if not results:
        return {}

    found = flow.finish_body(sweep, body, [*results, iteration])
    trips = _trip_count(rule, body)
    accessors, first = _residuals(rule, body, found.residuals, iteration, inside)
    if trips is None:
        trips = _count_residuals(rule, body, accessors)
    known_last = op.Sub(trips, 1, name="last")
    known_last.shape = ir.Shape([])
    found.replace({**accessors, last: known_last})
    subtraction = iteration.producer()
    assert subtraction is not None
    found.op.nodes.remove(subtraction)
    found.op.nodes[:0] = [subtraction, *first]
    outputs = [g for g in found.grads[:-1] if g is not None]
    keep = inside.Identity(going)
    keep.type, keep.shape = going.type, ir.Shape([])
    graph = flow.make_graph(found.op, [step, going, *dstates, *totals], [keep, *outputs], "backward")

    starts = [given[k] if given[k] is not None else rule.zeros_like(node.outputs[k]) for k in carried]
    starts += [rule.zeros_like(c) for c, _ in reached]
    made = op.call("Loop", [trips, None, *starts], outputs=len(outputs), body=graph)
    by_input: list[Value | None] = [None] * count
    for k, value in zip(carried, made, strict=False):
        source = node.inputs[2 + k]
        assert source is not None
        value.type, value.shape = source.type, source.shape
        by_input[k] = value
    sums = made[len(carried) :]
    for (captured, _), value in zip(reached, sums, strict=True):
        value.type, value.shape = captured.type, captured.shape
    return {"v_initial": by_input, "captured": [(c, v) for (c, _), v in zip(reached, sums, strict=True)]}


def _scalar(op: Emitter, name: str, dtype: ir.DataType) -> Value:
    return ir.Value(name=op.names.unique(f"{op.prefix}{name}"), type=ir.TensorType(dtype), shape=ir.Shape([]))


def _refuse_optionals(states: list[Value]) -> None:
    for state in states:
        if isinstance(state.type, ir.OptionalType):
            raise Unsupported(
                f"the Loop carries the optional `{state.name}`, which may be empty and then has no gradient; "
                "carry a tensor or a sequence instead"
            )


def _trip_count(rule: Rule, body: ir.Graph) -> Value | None:
    """Return the number of iterations as a scalar if it is known without running the loop, else None."""
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
    """Return for each residual the value in the backward body that holds it, and the nodes that fetch them."""
    op = Emitter(inside.opset, inside.names, prefix=inside.prefix)
    accessors: dict[Value, Value] = {}
    for residual in residuals:
        if residual is body.inputs[0]:
            accessors[residual] = iteration
            continue
        if is_invariant(residual, body):
            states = len(rule.node.inputs) - 2
            scans = len(rule.node.outputs) - states + len(residuals)
            stacked = flow.stack_residual(rule, body, residual, states, [0] * scans, [0] * scans)
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
    """Return the output of the Loop that holds `residual` of every iteration as a sequence: its shape may change."""
    node, names = rule.node, rule.op.names
    if not isinstance(residual.type, ir.TensorType):
        raise Unsupported(
            f"the backward needs `{residual.name}`, which is optional, of every iteration of the Loop, and ONNX has no "
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
    """Return how often the forward Loop went round, from the length of something it kept of every iteration."""
    node, op = rule.node, rule.op
    states = len(node.inputs) - 2
    for output in node.outputs[states:]:
        if output.name:
            length = op.Shape(output, start=0, end=1)
            return op.Squeeze(length, np.array([0], np.int64))
    for accessor in accessors.values():
        fetch = accessor.producer()
        if fetch is not None and fetch.op_type == "SequenceAt":
            return op.SequenceLength(fetch.inputs[0])
    stacked = flow.stack_residual(rule, body, body.inputs[0], states, [0], [0])
    return op.Squeeze(op.Shape(stacked, start=0, end=1), np.array([0], np.int64))
