"""Sequences: what can be made of the empty one."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.emit import subgraph_input
from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

INT64, BOOL = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)


@decomposition("SequenceConstruct")
def sequence_construct(at: Lowering) -> Value:
    """SequenceInsert of each tensor into the empty sequence."""
    values = at.variadic("inputs")
    made = at.op.SequenceEmpty(dtype=at.dtype(values[0]))
    for value in values:
        made = at.op.SequenceInsert(made, value)
    return made


@decomposition("SplitToSequence")
def split_to_sequence(at: Lowering) -> Value:
    """A Loop of Slice and SequenceInsert."""
    op, x = at.op, at.input("input")
    axis, split = int(at.attr("axis")), at.optional_input("split")
    size = at.size(x, axis) if at.rank(x) is not None else op.Gather(op.Shape(x), [axis])
    kind = ir.SequenceType(ir.TensorType(at.dtype(x)))
    if split is None:
        each, count, listed = op.constant([1]), at.scalar(size), None
    elif at.rank_of(split) == 0:
        each = op.Reshape(op.cast(split, ir.DataType.INT64), [1])
        total = op.constant([size]) if isinstance(size, int) else size
        count, listed = (
            op.Reshape(op.Div(op.Sub(op.Add(total, each), 1), each), op.constant([], ir.DataType.INT64)),
            None,
        )
    else:
        listed = op.cast(split, ir.DataType.INT64)
        each, count = None, op.Reshape(op.Shape(listed), op.constant([], ir.DataType.INT64))
        ends = op.CumSum(listed, 0)
    inner = op.inner(f"{op.prefix}part/")
    step = subgraph_input(inner, "step", INT64, ir.Shape([]))
    go = subgraph_input(inner, "go", BOOL, ir.Shape([]))
    parts = subgraph_input(inner, "parts", kind)
    if listed is None:
        start = inner.Mul(inner.Reshape(step, [1]), each)
        end = inner.Add(start, each)
    else:
        place = inner.Reshape(step, [1])
        end = inner.Gather(ends, place, axis=0)
        start = inner.Sub(end, inner.Gather(listed, place, axis=0))
    part = inner.Slice(x, start, end, [axis])
    if split is None and not at.attr("keepdims"):
        part = inner.Squeeze(part, [axis])
    longer = inner.SequenceInsert(parts, part)
    longer.type = kind
    on = inner.Identity(go)
    body = ir.Graph([step, go, parts], [on, longer], nodes=inner.nodes, name=f"{op.prefix}part")
    (made,) = op.call("Loop", [count, op.constant(True), op.SequenceEmpty(dtype=at.dtype(x))], body=body)
    made.type = kind
    return made
