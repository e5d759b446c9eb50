"""Keep ONNX Runtime from fusing normalizations that read 16-bit numbers and compute in 32 bits.

PyTorch's autocast exports them: Cast, ReduceMean, Sub, … From opset 17 on, ONNX Runtime (1.31) makes a
`LayerNormalization` of such nodes whose input and scale have different types, and then refuses it. Before, it makes an
operator of its own, which allows that: a file that loads at opset 12 would not load at opset 18.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph import edit, walk
from onward.graph.builder import Builder, Names, Value

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, None)  # None: the type is not known


def has_mixed_normalization(graphs: list[walk.GraphLike]) -> bool:
    """Return whether a graph has a normalization of this kind."""
    return any(_centres(node) for graph in graphs for node in walk.all_nodes(graph))


def split_mixed_normalizations(graph: walk.GraphLike, opset: int) -> None:
    """Write `x - mean` as `x + (-mean)`, in place: the same numbers, which ONNX Runtime does not take for a pattern."""
    names = Names(walk.all_names(graph))
    for node in list(walk.all_nodes(graph)):
        if _centres(node):
            op = Builder(opset, names, prefix=f"{node.name or node.op_type}/")
            edit.replace_node(node, op, [op.Add(node.inputs[0], op.Neg(node.inputs[1]))])


def _centres(node: ir.Node) -> bool:
    """Return whether a node subtracts the mean of a number that was cast from 16 bits."""
    if node.op_type != "Sub" or node.domain not in ("", "ai.onnx"):
        return False
    x, mean = node.inputs
    reduction = mean.producer() if mean is not None else None
    if reduction is None or reduction.op_type != "ReduceMean":
        return False
    source = _before_cast(x)
    return source is not None and source is _before_cast(reduction.inputs[0]) and source.dtype in _NARROW


def _before_cast(value: Value | None) -> Value | None:
    """Return what a Cast reads, or None if no Cast makes the value."""
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == "Cast" else None
