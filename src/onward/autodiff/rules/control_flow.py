"""If and Scan: the gradient of each body, run over the residuals that the forward node hands out. Loop: loop.py."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff import control_flow as flow
from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph import walk
from onward.graph.builder import Value


@gradient("If", opset=11, cond=NON_DIFFERENTIABLE)
def if_(rule: Rule, *doutputs: Value | None) -> Grads:
    """outputs = then_branch if cond else else_branch, so the backward is If(cond) of the branches' backwards.

    What only one branch reads gets zeros from the other. Each branch hands out its residuals as further outputs, the
    other branch an empty tensor in their place.
    """
    node = rule.node
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    wrt = flow.active_captures(rule, *branches)
    sweeps = [flow.start_body(rule) for _ in branches]
    found: list[dict[Value, Value]] = []
    for sweep, branch in zip(sweeps, branches, strict=True):
        read = set(walk.captured(branch))
        mine = [v for v in wrt if v in read]
        seeds = [(value, d) for value, d in zip(branch.outputs, doutputs, strict=False) if d is not None]
        grads = flow.differentiate_body(sweep, branch, seeds, mine)
        found.append({v: g for v, g in zip(mine, grads, strict=True) if g is not None})
    reached = [v for v in wrt if any(v in by_value for by_value in found)]
    if not reached:
        return {}
    bodies = []
    for sweep, branch, by_value in zip(sweeps, branches, found, strict=True):
        grads = [by_value[v] if v in by_value else flow.zeros(sweep.op, v) for v in reached]
        bodies.append(flow.finish_body(sweep, branch, grads))
    made = []
    for index, body in enumerate(bodies):
        body.replace({r: _hand_out(rule, branches, index, r) for r in body.residuals})
        outputs = [g for g in body.grads if g is not None]
        made.append(flow.make_graph(body.op, [], outputs, "then" if index == 0 else "else"))
    results = rule.op.call("If", [node.inputs[0]], outputs=len(reached), then_branch=made[0], else_branch=made[1])
    for value, result in zip(reached, results, strict=True):
        result.type, result.shape = flow.body_input(bodies[0].op, value, "type").type, value.shape
    return {"captured": list(zip(reached, results, strict=True))}


def _hand_out(rule: Rule, branches: list[ir.Graph], index: int, residual: Value) -> Value:
    """Return the output of the If node that holds `residual` of the chosen branch."""
    node, branch, other = rule.node, branches[index], branches[1 - index]
    for position, value in enumerate(branch.outputs):
        if value is residual:
            return node.outputs[position]
    name = rule.op.names.unique(f"{node.name or 'If'}/residual/{residual.name}")
    (output,) = flow.grow_outputs(node, [name])
    branch.outputs.append(residual)
    other.outputs.append(_nothing(rule, other, residual))
    output.type = residual.type
    rank = None if residual.shape is None else len(residual.shape)
    output.shape = None if rank is None else ir.Shape([None] * rank)
    return output


def _nothing(rule: Rule, graph: ir.Graph, like: Value) -> Value:
    """Return an empty tensor or sequence of the type of `like`, made in `graph`."""
    name = rule.op.names.unique(f"{rule.node.name or 'If'}/no/{like.name}")
    dtype = like.dtype or ir.DataType.FLOAT
    if isinstance(like.type, ir.SequenceType):
        node = ir.Node("", "SequenceEmpty", [], [ir.AttrInt64("dtype", dtype.value)], num_outputs=1, name=name)
    else:
        rank = 1 if like.shape is None else len(like.shape)
        tensor = ir.tensor(np.zeros((0,) * rank, dtype.numpy()), dtype=dtype)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=name)
        node.outputs[0].shape = ir.Shape([0] * rank)
    node.outputs[0].name = rule.op.names.unique(f"{name}:out")
    node.outputs[0].type = like.type
    graph.append(node)
    return node.outputs[0]


@gradient("Scan", opset=11)
def scan(rule: Rule, *dfinal_state_and_scan_outputs: Value | None) -> Grads:
    """state[t+1], y[t] = body(state[t], x[t]), so the backward is a Scan over t from last to first.

    It carries the gradients of the states and the sums for what the body captures, reads the residuals, and writes
    dx[t]. A scan input read forwards is written backwards and the other way round.
    """
    node, op = rule.node, rule.op
    body = node.attributes["body"].as_graph()
    scanned = int(rule.attr("num_scan_inputs"))
    states = len(node.inputs) - scanned
    outputs = len(node.outputs) - states
    in_axes = rule.attr("scan_input_axes") or [0] * scanned
    in_directions = rule.attr("scan_input_directions") or [0] * scanned
    out_axes = (rule.attr("scan_output_axes") or []) + [0] * outputs
    out_directions = (rule.attr("scan_output_directions") or []) + [0] * outputs
    given = list(dfinal_state_and_scan_outputs)

    pairs = [(body.inputs[k], body.outputs[k]) for k in range(states)]
    sources = [body.inputs[states + m] for m in range(scanned) if _is_active(rule, node.inputs[states + m])]
    captures = flow.active_captures(rule, body)
    read_scans = [s for s in range(outputs) if given[states + s] is not None]
    carried = flow.carried_states(
        body,
        pairs,
        started=[k for k in range(states) if _is_active(rule, node.inputs[k])],
        given=[k for k in range(states) if given[k] is not None],
        sources=[*sources, *captures],
        targets=[body.outputs[states + s] for s in read_scans],
    )

    sweep = flow.start_body(rule)
    inside = sweep.op
    dstates = {k: flow.body_input(inside, pairs[k][0], f"d{pairs[k][1].name}") for k in carried}
    dscans = {s: flow.body_input(inside, body.outputs[states + s], f"dscan{s}") for s in read_scans}
    seeds = [(pairs[k][1], d) for k, d in dstates.items()]
    seeds += [(body.outputs[states + s], d) for s, d in dscans.items()]
    state_inputs = [pairs[k][0] for k in carried]
    grads = flow.differentiate_body(sweep, body, seeds, [*state_inputs, *sources, *captures])
    dstate_in, rest = grads[: len(carried)], grads[len(carried) :]
    dsources, dcaptures = rest[: len(sources)], rest[len(sources) :]

    reached = [(c, g) for c, g in zip(captures, dcaptures, strict=True) if g is not None]
    totals = [flow.body_input(inside, c, f"sum/{c.name}") for c, _ in reached]
    new_states = [g if g is not None else flow.zeros(inside, v) for g, v in zip(dstate_in, state_inputs, strict=True)]
    new_totals = [flow.accumulate(inside, t, g) for t, (_, g) in zip(totals, reached, strict=True)]
    written = [(v, g) for v, g in zip(sources, dsources, strict=True) if g is not None]
    found = flow.finish_body(sweep, body, [*new_states, *new_totals, *(g for _, g in written)])
    for grad, formal in zip(found.grads, [*state_inputs, *totals, *(v for v, _ in written)], strict=True):
        if grad is not None and grad.shape is None:
            grad.shape = formal.shape  # ONNX Runtime wants the rank of everything that a Scan's body returns
    _refuse_sequences(found.residuals)
    residuals: list[Value | None] = [
        flow.stack_residual(rule, body, r, states, out_axes, out_directions) for r in found.residuals
    ]
    if not residuals and not read_scans:  # a Scan needs something to count its steps by
        residuals, spare = [node.inputs[states]], [flow.body_input(inside, body.inputs[states], "step")]
        spare_axis = [in_axes[0]]
    else:
        spare, spare_axis = [], []
    slots = {r: flow.body_input(inside, r, f"residual/{r.name}") for r in found.residuals}
    found.replace(slots)
    results = [g for g in found.grads if g is not None]
    graph = flow.make_graph(
        found.op, [*dstates.values(), *totals, *dscans.values(), *slots.values(), *spare], results, "backward"
    )

    starts = [given[k] if given[k] is not None else rule.zeros_like(node.outputs[k]) for k in carried]
    starts += [rule.zeros_like(c) for c, _ in reached]
    made = op.call(
        "Scan",
        [*starts, *(given[states + s] for s in read_scans), *residuals],
        outputs=len(results),
        body=graph,
        num_scan_inputs=len(read_scans) + len(residuals),
        scan_input_axes=[out_axes[s] for s in read_scans] + (spare_axis or [0] * len(residuals)),
        scan_input_directions=[1 - out_directions[s] for s in read_scans] + [1] * len(residuals),
        scan_output_axes=[in_axes[body.inputs.index(v) - states] for v, _ in written] or None,
        scan_output_directions=[1 - in_directions[body.inputs.index(v) - states] for v, _ in written] or None,
    )
    by_input: list[Value | None] = [None] * len(node.inputs)
    for k, value in zip(carried, made, strict=False):
        by_input[k] = value
    sums = made[len(carried) : len(carried) + len(reached)]
    for (source, _), value in zip(written, made[len(carried) + len(reached) :], strict=True):
        by_input[body.inputs.index(source)] = value
    for result, like in zip(by_input, node.inputs, strict=True):
        if result is not None and like is not None:
            result.type, result.shape = like.type, like.shape
    for (captured, _), value in zip(reached, sums, strict=True):
        value.type, value.shape = captured.type, captured.shape
    return {
        "initial_state_and_scan_inputs": by_input,
        "captured": [(c, v) for (c, _), v in zip(reached, sums, strict=True)],
    }


def _refuse_sequences(residuals: list[Value]) -> None:
    for residual in residuals:
        if not isinstance(residual.type, ir.TensorType | type(None)):
            raise Unsupported(
                f"the backward needs `{residual.name}`, a sequence, of every step, and a Scan hands out only tensors; "
                "use a Loop, or give what the body keeps in a sequence a fixed shape"
            )


def _is_active(rule: Rule, value: Value | None) -> bool:
    assert rule.sweep is not None
    return value is not None and rule.sweep.wants(value)
