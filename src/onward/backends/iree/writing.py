"""Single nodes of a model written as others: what is known of its values, and a writer of nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclasses.dataclass(frozen=True)
class Values:
    """What a model says of its values, by name; 0 is a size that it does not say."""

    kinds: Mapping[str, int]
    sizes: Mapping[str, Sequence[int]]
    constants: Mapping[str, onnx.TensorProto]


Write = Callable[[onnx.NodeProto, Values], Sequence[onnx.NodeProto] | None]


def written(graph: onnx.GraphProto, write: Write) -> list[onnx.NodeProto] | None:
    """Return the nodes of a graph, with what `write` gives for a node in its place; None if it gives None for all."""
    values = (*graph.input, *graph.value_info, *graph.output)
    kinds = {t.name: t.data_type for t in graph.initializer} | {v.name: v.type.tensor_type.elem_type for v in values}
    sizes = {t.name: list(t.dims) for t in graph.initializer}
    sizes |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    constants = {t.name: t for t in graph.initializer}
    constants |= {
        n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant" and n.attribute[0].HasField("t")
    }
    known = Values(kinds, sizes, constants)
    others = [None if node.domain else write(node, known) for node in graph.node]
    if all(made is None for made in others):
        return None
    return [n for node, made in zip(graph.node, others, strict=True) for n in ([node] if made is None else made)]


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Give a graph other nodes, some of which may be its own."""
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def rewritten(model: onnx.ModelProto, write: Write) -> onnx.ModelProto:
    """Return a model with what `write` gives in place of some nodes; the same model if it gives nothing."""
    nodes = written(model.graph, write)
    if nodes is None:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    replace_nodes(changed.graph, nodes)
    return onnx.shape_inference.infer_shapes(changed, data_prop=True)


class Writer:
    """Writes nodes whose values are named after the output of the node that they replace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[onnx.NodeProto] = []

    def node(self, operator: str, inputs: Sequence[str], label: str, **attributes: Any) -> str:
        """Add a node; return the name of its output, which is that of the replaced node if `label` is empty."""
        output = f"{self.name}/{label}" if label else self.name
        self.made.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def numbers(self, label: str, values: Sequence[int] | np.ndarray) -> str:
        """Add a constant of whole numbers."""
        tensor = numpy_helper.from_array(np.array(values, np.int64))
        return self.node("Constant", [], label, value=tensor)
