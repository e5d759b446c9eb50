"""If and Scan: the backward runs the gradient of each body on residuals from the forward node. Loop: loop.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onward.autodiff import control_flow as flow
from onward.autodiff.emit import Emitter
from onward.autodiff.engine import Backward, gradient_type
from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.shapes import scan_attribute
from onward.autodiff.steps import Steps, stack_residual
from onward.autodiff.types import Grads
from onward.graph import shapes, walk
from onward.graph.builder import Value


@gradient("If", opset=11, cond=NON_DIFFERENTIABLE)
def if_(rule: Rule, *doutputs: Value | None) -> Grads:
    """outputs = then_branch if cond else else_branch, so the backward is If(cond) of the branches' backwards.

    A value that only one branch reads gets zeros from the other. The residuals of a branch become further outputs of
    the If; the other branch returns empty tensors in their place.
    """
    branches = [rule.node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    wrt = flow.active_captures(rule, *branches)
    sweeps = [flow.start_body(rule) for _ in branches]
    found = [_differentiate_branch(*pair, doutputs, wrt) for pair in zip(sweeps, branches, strict=True)]
    reached = [v for v in wrt if any(v in grads for grads in found)]
    if not reached:
        return {}
    bodies = [
        flow.finish_body(sweep, branch, flow.or_zeros(sweep.op, grads, reached))
        for sweep, branch, grads in zip(sweeps, branches, found, strict=True)
    ]
    made: dict[str, Any] = {}
    for index, (name, body) in enumerate(zip(("then", "else"), bodies, strict=True)):
        body.replace({r: _residual_output(rule, branches, index, r) for r in body.residuals})
        made[f"{name}_branch"] = flow.make_graph(body.op, [], body.grads, name)
    results = rule.op.call("If", [rule.node.inputs[0]], outputs=len(reached), **made)
    for value, result in zip(reached, results, strict=True):
        result.type, result.shape = gradient_type(value), value.shape
    return {"captured": list(zip(reached, results, strict=True))}


def _differentiate_branch(
    sweep: Backward, branch: ir.Graph, doutputs: Sequence[Value | None], wrt: Sequence[Value]
) -> dict[Value, Value]:
    """Return the gradients of those of `wrt` that the branch reads."""
    read = set(walk.captured(branch))
    given = [(value, d) for value, d in zip(branch.outputs, doutputs, strict=False) if d is not None]
    seeds = [(value, _inside_branch(sweep, value, d)) for value, d in given]
    return flow.differentiate_body(sweep, branch, seeds, [v for v in wrt if v in read])


def _inside_branch(sweep: Backward, value: Value, d: Value) -> Value:
    """Return the gradient of a branch's output: in each branch a value of its own where the shapes differ.

    The engine completes the shape of a gradient, but the output of the other branch may have another rank.
    """
    if shapes.dims(d) == shapes.dims(value):
        return d
    inside: Value = sweep.op.Identity(d)
    inside.type, inside.shape = d.type, value.shape
    return inside


def _residual_output(rule: Rule, branches: list[ir.Graph], index: int, residual: Value) -> Value:
    """Return the output of the If node that holds `residual` of the chosen branch."""
    node, branch, other = rule.node, branches[index], branches[1 - index]
    for position, value in enumerate(branch.outputs):
        if value is residual:
            return node.outputs[position]
    name = rule.op.names.unique(f"{node.name or 'If'}/residual/{residual.name}")
    (output,) = flow.grow_outputs(node, [name])
    branch.outputs.append(residual)
    zeros = _zeros_in_scan(rule, branches, other, residual)
    other.outputs.append(_empty_like(rule, other, residual) if zeros is None else zeros)
    output.type = residual.type
    rank = None if residual.shape is None else len(residual.shape)
    output.shape = residual.shape if zeros is not None else None if rank is None else ir.Shape([None] * rank)
    return output


def _zeros_in_scan(rule: Rule, branches: list[ir.Graph], graph: ir.Graph, like: Value) -> Value | None:
    """Return zeros of the shape of `like`, made in `graph`, if the If is in a Scan and the shape has free sizes.

    A Scan stacks what each step returns, so both branches must return one shape. The free sizes are read from values
    outside of the branches that have a size of the same name; without such a value the result is None.
    """
    assert rule.sweep is not None
    wanted = shapes.dims(like)
    if wanted is None or not any(n.op_type == "Scan" for n in rule.sweep.within):
        return None
    owner = rule.node.graph
    outside = [*(v for b in branches for v in walk.captured(b)), *(owner.inputs if owner is not None else ())]
    places = {d: (v, axis) for v in outside for axis, d in enumerate(shapes.dims(v) or ()) if isinstance(d, str)}
    if all(isinstance(d, int) for d in wanted) or not all(isinstance(d, int) or d in places for d in wanted):
        return None
    op = Emitter(rule.op.opset, rule.op.names, prefix=f"{rule.node.name or 'If'}/no/{like.name}/")
    sizes = []
    for size in wanted:
        if isinstance(size, int):
            sizes.append(op.constant(np.array([size], np.int64)))
        else:
            assert size is not None
            value, axis = places[size]
            sizes.append(op.Shape(value, start=axis, end=axis + 1))
    shape = sizes[0] if len(sizes) == 1 else op.Concat(*sizes, axis=0)
    made: Value = op.ConstantOfShape(shape, value=np.zeros(1, (like.dtype or ir.DataType.FLOAT).numpy()))
    made.type, made.shape = like.type, like.shape
    graph.extend(op.nodes)
    return made


_SMALL = 4096  # elements


def _empty_like(rule: Rule, graph: ir.Graph, like: Value) -> Value:
    """Return a tensor or sequence of the type of `like`, made in `graph`: empty, or of zeros if it is small."""
    name = rule.op.names.unique(f"{rule.node.name or 'If'}/no/{like.name}")
    dtype = like.dtype or ir.DataType.FLOAT
    if isinstance(like.type, ir.SequenceType):
        node = ir.Node("", "SequenceEmpty", [], [ir.AttrInt64("dtype", dtype.value)], num_outputs=1, name=name)
    else:
        # A runtime that folds constants reads a condition even where nothing does: it must be one element.
        is_condition = dtype == ir.DataType.BOOL
        rank = len(like.shape) if like.shape is not None else 0 if is_condition else 1
        size = (int(is_condition),) * rank
        dims = [d for d in shapes.dims(like) or () if isinstance(d, int)]
        if like.shape is not None and len(dims) == len(like.shape) and np.prod(dims) <= _SMALL:
            size = tuple(dims)  # in a loop, which stacks what each iteration returns, all must have one shape
        tensor = ir.tensor(np.zeros(size, dtype.numpy()), dtype=dtype)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=name)
        node.outputs[0].shape = ir.Shape(size)
    node.outputs[0].name = rule.op.names.unique(f"{name}:out")
    node.outputs[0].type = like.type
    graph.append(node)
    return node.outputs[0]


@gradient("Scan", opset=11)
def scan(rule: Rule, *dfinal_state_and_scan_outputs: Value | None) -> Grads:
    """state[t+1], y[t] = body(state[t], x[t]), so the backward is a Scan over t from last to first.

    It carries the gradients of the states and of the captured values, reads the residuals, and writes dx[t]. If a scan
    input was read forwards, its gradient is written backwards, and the other way round.
    """
    states = len(rule.node.inputs) - int(rule.attr("num_scan_inputs"))
    steps = Steps(rule, dfinal_state_and_scan_outputs, states=states)
    dscans = _read_gradients(steps, states)
    steps.differentiate([read.inside for read in dscans], like=steps.state_inputs)
    found = steps.finish()
    _give_shapes(found, steps)
    residuals = _read_residuals(found, steps, states)
    made = _run_backwards(found, steps, states, [*dscans, *residuals] or [_read_any(steps, states)])
    by_input, captured = steps.gradients(made)
    return {"initial_state_and_scan_inputs": by_input, "captured": captured}


class _Read(NamedTuple):
    """A scan input of the backward Scan: the whole, the slice of one step in the body, and how it is sliced."""

    whole: Value
    inside: Value
    axis: int
    direction: int


def _read_gradients(steps: Steps, states: int) -> list[_Read]:
    """Return the gradients of the scan outputs, read in the opposite direction."""
    node, count = steps.rule.node, len(steps.given) - states
    axes = scan_attribute(node, "scan_output_axes", count)
    directions = scan_attribute(node, "scan_output_directions", count)
    reads = []
    for index, output in steps.scan_outputs.items():
        whole, scan = steps.given[index], index - states
        assert whole is not None
        inside = flow.body_input(steps.op, output, f"dscan{scan}")
        reads.append(_Read(whole, inside, axes[scan], 1 - directions[scan]))
    return reads


def _read_residuals(found: flow.BodyGradient, steps: Steps, states: int) -> list[_Read]:
    """Make the forward Scan write the residuals of every step, and the backward body read them, last step first."""
    _refuse_sequences(found.residuals)
    stacked = [stack_residual(steps.rule, steps.body, r, states) for r in found.residuals]
    return [_Read(whole, inside, 0, 1) for whole, inside in zip(stacked, found.read_from_inputs(), strict=True)]


def _read_any(steps: Steps, states: int) -> _Read:
    """Return the first scan input; the backward does not need it, but a Scan must read something to count steps."""
    whole = steps.rule.node.inputs[states]
    assert whole is not None
    axis = scan_attribute(steps.rule.node, "scan_input_axes", 1)[0]
    return _Read(whole, flow.body_input(steps.op, steps.body.inputs[states], "step"), axis, 1)


def _give_shapes(found: flow.BodyGradient, steps: Steps) -> None:
    """Give each result of the backward body a shape: ONNX Runtime wants the rank of all that a Scan's body returns."""
    for grad, like in zip(found.grads, [*steps.state_inputs, *steps.sums, *steps.written], strict=True):
        if grad.shape is None:
            grad.shape = like.shape


def _run_backwards(found: flow.BodyGradient, steps: Steps, states: int, reads: list[_Read]) -> tuple[Value, ...]:
    """Emit the backward Scan, which writes each gradient in the direction opposite to that of the scan input."""
    node = steps.rule.node
    axes, directions = (scan_attribute(node, f"scan_input_{kind}", len(node.inputs)) for kind in ("axes", "directions"))
    written = [list(steps.body.inputs).index(v) - states for v in steps.written]
    inputs = [*steps.dstates, *steps.sums, *(read.inside for read in reads)]
    graph = flow.make_graph(found.op, inputs, found.grads, "backward")
    return steps.rule.op.call(
        "Scan",
        [*steps.starts(), *(read.whole for read in reads)],
        outputs=len(found.grads),
        body=graph,
        num_scan_inputs=len(reads),
        scan_input_axes=[read.axis for read in reads],
        scan_input_directions=[read.direction for read in reads],
        scan_output_axes=[axes[scan] for scan in written] or None,
        scan_output_directions=[1 - directions[scan] for scan in written] or None,
    )


def _refuse_sequences(residuals: list[Value]) -> None:
    """Raise Unsupported if a residual is not a tensor."""
    for residual in residuals:
        if not isinstance(residual.type, ir.TensorType | type(None)):
            raise Unsupported(
                f"the backward needs the sequence `{residual.name}` from every step, but a Scan outputs only tensors; "
                "use a Loop, or keep a tensor of fixed shape instead of the sequence"
            )
