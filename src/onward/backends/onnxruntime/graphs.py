"""What is special to ONNX Runtime: rewrites that make a plain graph safe and fast on its kernels (decision 4)."""

from __future__ import annotations

import onnx


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` as ONNX Runtime should run it."""
    if not any(_overwrites_its_inputs(n) for n in model.graph.node):
        return model
    prepared = onnx.ModelProto()
    prepared.CopyFrom(model)
    _protect_statistics(prepared.graph)
    return prepared


def _overwrites_its_inputs(node: onnx.NodeProto) -> bool:
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


def _protect_statistics(graph: onnx.GraphProto) -> None:
    """Give every training BatchNormalization running statistics of its own to overwrite.

    The CPU kernel declares Alias(3, 1) and Alias(4, 2): it writes the new statistics into the memory of the old ones,
    even where that is an input of the graph and other nodes still read it. Neg(Neg(x)) is a copy, to the bit, that no
    optimizer of ONNX Runtime takes away, as they do with Identity.
    """
    nodes = list(graph.node)
    del graph.node[:]
    for index, node in enumerate(nodes):
        if _overwrites_its_inputs(node):
            for position in (3, 4):
                old = node.input[position]
                middle, copy = (f"onnxruntime/{part}/{index}/{old}" for part in ("negative", "copy"))
                graph.node.append(onnx.NodeProto(op_type="Neg", input=[old], output=[middle], name=middle))
                graph.node.append(onnx.NodeProto(op_type="Neg", input=[middle], output=[copy], name=copy))
                node.input[position] = copy
        graph.node.append(node)
