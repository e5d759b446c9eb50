"""Make the inputs of `Range` the scalars that the standard asks for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph import walk
from onward.graph.builder import Builder, Names

_LIKE_ITS_INPUT = frozenset(
    {"Abs", "Add", "Cast", "Ceil", "Div", "Floor", "Identity", "Max", "Min", "Mod", "Mul", "Neg", "Slice", "Sub"}
)
_VECTORS = frozenset({"Concat", "Shape", "Split", "Unsqueeze"})  # never a scalar


def has_vector_range(graphs: list[walk.GraphLike]) -> bool:
    """Return whether a `Range` reads a vector."""
    return any(_vectors(node) for graph in graphs for node in walk.all_nodes(graph))


def make_scalar_ranges(graph: walk.GraphLike, opset: int) -> None:
    """Reshape each vector that a `Range` reads to a scalar, in place.

    ONNX Runtime takes a vector of one number, as `Shape` gives it for one axis, and refuses it as soon as it knows the
    number, which it does when the sizes of a batch are settled (the feature extractors of onnx-asr 0.6).
    """
    names = Names(walk.all_names(graph))
    for node in list(walk.all_nodes(graph)):
        for index in _vectors(node):
            op = Builder(opset, names, prefix=f"{node.name or node.op_type}/")
            scalar = op.Reshape(node.inputs[index], np.array([], np.int64))
            assert node.graph is not None
            node.graph.insert_before(node, op.nodes)
            node.replace_input_with(index, scalar)


def _vectors(node: ir.Node) -> list[int]:
    """Return the inputs of a `Range` that have an axis."""
    if node.op_type != "Range" or node.domain not in ("", "ai.onnx"):
        return []
    return [i for i, value in enumerate(node.inputs) if _has_axis(value)]


def _has_axis(value: ir.Value | None) -> bool:
    """Return whether a value is known to have an axis, by its shape or by what computes it."""
    if value is None:
        return False
    if value.shape is not None:
        return len(value.shape) > 0
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "If":
        index = list(node.outputs).index(value)
        return any(_has_axis(branch.outputs[index]) for branch in walk.subgraphs(node))
    if node.op_type in _LIKE_ITS_INPUT:
        return any(_has_axis(v) for v in (node.inputs[:1] if node.op_type == "Slice" else node.inputs))
    return node.op_type in _VECTORS
