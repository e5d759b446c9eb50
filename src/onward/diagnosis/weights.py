"""Where the weights of a file are: what training could change, as the file stores it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onward.check.safety import element_count
from onward.graph.walk import all_nodes
from onward.model.trainable import FIXED
from onward.model.training_model import TrainingModel
from onward.upgrade.microsoft import why_left

_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16,
                     onnx.TensorProto.BFLOAT16})  # fmt: skip
_INTEGERS = frozenset({onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4})

# What multiplies with them: MatMulInteger, QLinearConv, QGemm, DynamicQuantizeLSTM …, and the pairs of QDQ files.
_PRODUCTS = ("Integer", "QLinear", "QGemm", "QAttention", "DynamicQuantize", "DequantizeLinear")

_CLASSICAL = "ai.onnx.ml"

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
                elif node.domain == _CLASSICAL and attribute.t.data_type in _FLOATS:
                    _count(found, attribute.t, ATTRIBUTES)
                elif node.domain == _CLASSICAL and len(attribute.floats) > 1:
                    found.setdefault(ATTRIBUTES, Store()).add(len(attribute.floats))
    return found


def fixed_weights(model: TrainingModel) -> dict[str, str]:
    """Return what holds weights that nothing can train, with the reason: constants, and nodes with attributes."""
    found = {}
    for node in all_nodes(model.graph):
        if node.domain == _CLASSICAL and any(_holds_numbers(a) for a in node.attributes.values()):
            why = why_left(node, model.opset) or "it has no form in plain operators"
            found[node.name or node.op_type] = f"attributes of {node.op_type} in this form cannot be trained: {why}"
        elif node.op_type == "Constant" and FIXED in node.outputs[0].metadata_props:
            found[node.outputs[0].name or ""] = node.outputs[0].metadata_props[FIXED]
    return found


def _holds_numbers(attribute: ir.Attr) -> bool:
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype.is_floating_point() and attribute.as_tensor().size > 1
    return attribute.type == ir.AttributeType.FLOATS and len(attribute.as_floats()) > 1


def overflowing_weights(model: onnx.ModelProto) -> list[str]:
    """Return the int8 weights with numbers beyond 7 bits that quantised data is multiplied with."""
    stored = {t.name: t for graph, _ in _graphs(model) if isinstance(graph, onnx.GraphProto) for t in graph.initializer}
    found: dict[str, None] = {}
    for graph, _ in _graphs(model):
        for node in graph.node:
            if any(part in node.op_type for part in _PRODUCTS):
                found |= dict.fromkeys(name for name in node.input if _exceeds_seven_bits(stored.get(name)))
    return list(found)


def _exceeds_seven_bits(tensor: onnx.TensorProto | None) -> bool:
    if tensor is None or tensor.data_type != onnx.TensorProto.INT8 or (element_count(tensor.dims) or 0) < 2:
        return False
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True  # not worth reading: ONNX Runtime's quantizer uses 8 bits unless it is told otherwise
    return bool(np.abs(numpy_helper.to_array(tensor).astype(np.int16)).max() > 64)


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
