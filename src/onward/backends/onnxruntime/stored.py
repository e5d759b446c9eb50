"""Let values that are stored in 16 bits be stored where the graph says.

`passes.recompute.storing` makes the forward pass wait for the narrow value by `Reshape(X, Shape(h))`. ONNX Runtime
replaces the Shape of a tensor of known sizes by a constant, so that nothing waits: h is then made when the backward
pass reads it, and X is kept until then. Here a shape of zeros, which stand for the sizes of X, is computed from the
first number of h.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph import edit
from onward.graph.builder import Builder
from onward.passes.base import Pass, Unit, rewrite_nodes

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class WaitForStored(Pass):
    """Replace Reshape(X, Shape(Cast(X))) by one whose shape ONNX Runtime cannot know."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "Reshape", _replace)


def _replace(node: ir.Node, op: Builder) -> bool:
    X, shape = node.inputs[:2]
    sized = None if shape is None else shape.producer()
    h = sized.inputs[0] if sized is not None and sized.op_type == "Shape" else None
    narrowed = None if h is None else h.producer()
    if X is None or h is None or h.dtype not in _NARROW or h.shape is None or narrowed is None:
        return False
    if narrowed.op_type != "Cast" or narrowed.inputs[0] is not X:
        return False
    first = op.Slice(op.Reshape(h, op.constant([-1], ir.DataType.INT64)), [0], [1])
    number = op.ReduceSum(op.Cast(first, to=ir.DataType.INT64), keepdims=0)  # NaN becomes some integer too
    tied = op.Reshape(X, op.Mul(number, op.constant([0] * len(h.shape), ir.DataType.INT64)))
    tied.type, tied.shape = node.outputs[0].type, h.shape.copy()
    edit.replace_node(node, op, [tied])
    return True
