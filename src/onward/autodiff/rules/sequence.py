"""Sequences: the gradient of a sequence is a sequence of the same length, with the gradients of its elements."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff import control_flow as flow
from onward.autodiff import sequences
from onward.autodiff.registry import NON_DIFFERENTIABLE, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value

declare("SequenceEmpty", opset=11)
declare("SequenceLength", opset=11, input_sequence=NON_DIFFERENTIABLE)


@gradient("SequenceConstruct", opset=11)
def sequence_construct(rule: Rule, doutput_sequence: Value) -> Grads:
    """output_sequence = [inputs[0], inputs[1], …], so dinputs[i] = doutput_sequence[i]."""
    grads: list[Value | None] = [rule.op.SequenceAt(doutput_sequence, i) for i in range(len(rule.node.inputs))]
    return {"inputs": grads}


@gradient("SequenceAt", opset=11, position=NON_DIFFERENTIABLE)
def sequence_at(rule: Rule, dtensor: Value) -> Grads:
    """tensor = input_sequence[position], so dinput_sequence is zeros with dtensor at position."""
    op, position = rule.op, rule.input("position")
    zeros = rule.zeros_like(rule.input("input_sequence"))
    index = _from_the_front(rule, position, zeros)
    return {"input_sequence": op.SequenceInsert(op.SequenceErase(zeros, index), dtensor, index)}


@gradient("SequenceInsert", opset=11, position=NON_DIFFERENTIABLE)
def sequence_insert(rule: Rule, doutput_sequence: Value) -> Grads:
    """output_sequence has tensor at position, so dtensor is the element there and dinput_sequence has the others."""
    op, position = rule.op, rule.optional_input("position")
    index: Value | None = None
    if position is not None:
        # A negative position counts from the end of the input sequence, which is shorter by one.
        index = _from_the_front(rule, position, rule.input("input_sequence"))
    return {
        "input_sequence": op.SequenceErase(doutput_sequence, index),
        "tensor": op.SequenceAt(doutput_sequence, -1 if index is None else index),
    }


@gradient("SequenceErase", opset=11, position=NON_DIFFERENTIABLE)
def sequence_erase(rule: Rule, doutput_sequence: Value) -> Grads:
    """output_sequence lacks the element at position, so dinput_sequence has zeros there."""
    op, source, position = rule.op, rule.input("input_sequence"), rule.optional_input("position")
    index = None if position is None else _from_the_front(rule, position, source)
    erased = op.SequenceAt(source, -1 if index is None else index)
    return {"input_sequence": op.SequenceInsert(doutput_sequence, rule.zeros_like(erased), index)}


@gradient("ConcatFromSequence", opset=11)
def concat_from_sequence(rule: Rule, dconcat_result: Value) -> Grads:
    """concat_result = the elements side by side, so dinput_sequence = dconcat_result cut into the same pieces."""
    op, axis = rule.op, rule.attr("axis")
    if rule.attr("new_axis", 0):
        return {"input_sequence": op.SplitToSequence(dconcat_result, axis=axis, keepdims=0)}
    end = None if axis == -1 else axis + 1
    (lengths,) = sequences.map_elements(
        op, [rule.input("input_sequence")], lambda inside, e: [inside.Shape(e[0], start=axis, end=end)], "lengths"
    )
    return {"input_sequence": op.SplitToSequence(dconcat_result, op.ConcatFromSequence(lengths, axis=0), axis=axis)}


@gradient("SplitToSequence", opset=11, split=NON_DIFFERENTIABLE)
def split_to_sequence(rule: Rule, doutput_sequence: Value) -> Grads:
    """output_sequence = input cut into pieces, so dinput = the pieces of doutput_sequence side by side."""
    dropped = rule.optional_input("split") is None and not rule.attr("keepdims", 1)
    joined = rule.op.ConcatFromSequence(doutput_sequence, axis=rule.attr("axis", 0), new_axis=int(dropped))
    return {"input": joined}


@gradient("SequenceMap", opset=17)
def sequence_map(rule: Rule, *dout_sequence: Value | None) -> Grads:
    """out[i] = body(input_sequence[i], additional_inputs[i]), so the gradients are mapped over the same elements.

    Additional inputs that are tensors, and captured values, get the sum over all elements.
    """
    node, body = rule.node, rule.node.attributes["body"].as_graph()
    wanted = [formal for formal, v in zip(body.inputs, node.inputs, strict=True) if flow.is_active(rule, v)]
    captures = flow.active_captures(rule, body)
    sweep = flow.start_body(rule)
    given = [(d, output) for d, output in zip(dout_sequence, body.outputs, strict=False) if d is not None]
    delements = [flow.body_input(sweep.op, output, f"d{output.name}") for _, output in given]
    seeds = [(output, element) for (_, output), element in zip(given, delements, strict=True)]
    grads = flow.differentiate_body(sweep, body, seeds, [*wanted, *captures])
    if not grads:
        return {}
    found = flow.finish_body(sweep, body, list(grads.values()))
    kept = [_keep(rule, body, r) for r in found.residuals]
    graph = flow.make_graph(found.op, [*delements, *found.read_from_inputs()], found.grads, "backward")
    made = rule.op.call("SequenceMap", [*(d for d, _ in given), *kept], outputs=len(grads), body=graph)
    mapped = dict(zip(grads, made, strict=True))
    for value, grad in grads.items():
        mapped[value].type = ir.SequenceType(grad.type or ir.TensorType(value.dtype or ir.DataType.FLOAT))
    by_input = [_per_input(rule, mapped.get(formal), v) for formal, v in zip(body.inputs, node.inputs, strict=True)]
    captured = [(v, _total(rule, mapped[v], v)) for v in captures if v in mapped]
    return {"input_sequence": by_input[0], "additional_inputs": by_input[1:], "captured": captured}


def _per_input(rule: Rule, mapped: Value | None, actual: Value | None) -> Value | None:
    """Return the gradient of an input: that of each element for a sequence, their sum for a tensor."""
    if mapped is None or actual is None:
        return None
    return mapped if isinstance(actual.type, ir.SequenceType) else _total(rule, mapped, actual)


def _total(rule: Rule, mapped: Value, like: Value) -> Value:
    """Return the sum of the elements of a sequence, zeros if it is empty."""
    op = rule.op
    never_empty = op.SequenceInsert(mapped, rule.zeros_like(like))
    stacked = op.ConcatFromSequence(never_empty, axis=0, new_axis=1)
    total = op.ReduceSum(stacked, np.array([0], np.int64), keepdims=0)
    total.type, total.shape = like.type, like.shape
    return total


def _keep(rule: Rule, body: ir.Graph, residual: Value) -> Value:
    """Return the sequence of `residual` for every element: an output of the SequenceMap or one of its inputs."""
    node, names = rule.node, rule.op.names
    for position, value in enumerate(body.outputs):
        if value is residual:
            return node.outputs[position]
    formals = list(body.inputs)
    if residual in formals:
        actual = node.inputs[formals.index(residual)]
        assert actual is not None
        return actual
    # The runtimes replace a SequenceMap by a Loop that has names of its own, which a body's output, such as `cond`,
    # must not have.
    residual.name = names.unique(f"{node.name or 'SequenceMap'}/kept/{residual.name}")
    body.outputs.append(residual)
    (output,) = flow.grow_outputs(node, [names.unique(f"{node.name or 'SequenceMap'}/residual/{residual.name}")])
    assert residual.type is not None
    output.type, output.shape = ir.SequenceType(residual.type), residual.shape
    return output


def _from_the_front(rule: Rule, position: Value, sequence: Value) -> Value:
    """Return `position` counted from the front of `sequence`; a negative position counts from the end."""
    op = rule.op
    known = rule.constant_input("position")
    if known is not None and known.size and int(known.reshape(-1)[0]) >= 0:
        return position
    index = op.cast(position, ir.DataType.INT64)
    return op.Where(op.Less(index, 0), op.Add(index, op.SequenceLength(sequence)), index)
