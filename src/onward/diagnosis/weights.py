"""Where the weights of a file are: what training could change, as the file stores it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx

from onward.check.safety import element_count

_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16,
                     onnx.TensorProto.BFLOAT16})  # fmt: skip
_INTEGERS = frozenset({onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4})

INITIALIZERS = "initializers"
CONSTANTS = "Constant nodes"
INSIDE = "inside branches, loops and functions"
ATTRIBUTES = "attributes of nodes"
QUANTISED = "quantised integers"


@dataclasses.dataclass
class Store:
    """One way in which a file stores weights."""

    tensors: int = 0
    numbers: int = 0

    def add(self, numbers: int) -> None:
        self.tensors += 1
        self.numbers += numbers


def find_weights(model: onnx.ModelProto) -> dict[str, Store]:
    """Return the tensors of at least two numbers, by the way in which they are stored."""
    found: dict[str, Store] = {}
    for graph, inside in _graphs(model):
        for tensor in graph.initializer if isinstance(graph, onnx.GraphProto) else ():
            _count(found, tensor, INSIDE if inside else INITIALIZERS)
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.HasField("t"):
                    _count(found, attribute.t, INSIDE if inside else CONSTANTS)
                elif len(attribute.floats) > 1 and node.domain == "ai.onnx.ml":
                    found.setdefault(ATTRIBUTES, Store()).add(len(attribute.floats))
    return found


def _count(found: dict[str, Store], tensor: onnx.TensorProto, place: str) -> None:
    numbers = element_count(tensor.dims) or 0
    if numbers < 2:
        return
    if tensor.data_type in _FLOATS:
        found.setdefault(place, Store()).add(numbers)
    elif tensor.data_type in _INTEGERS:
        found.setdefault(QUANTISED, Store()).add(numbers)


def _graphs(model: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto | onnx.FunctionProto, bool]]:
    """Yield each graph and function, and whether it is inside something."""
    queue: list[tuple[onnx.GraphProto | onnx.FunctionProto, bool]] = [(model.graph, False)]
    queue += [(function, True) for function in model.functions]
    while queue:
        graph, inside = queue.pop()
        yield graph, inside
        for node in graph.node:
            for attribute in node.attribute:
                queue += [(g, True) for g in attribute.graphs]
                if attribute.HasField("g"):
                    queue.append((attribute.g, True))
