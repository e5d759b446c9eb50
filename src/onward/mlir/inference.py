"""The types of all values of a model, for the text: as the file states them, or as onnx infers them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from onward.graph.shapes import infer
from onward.mlir.syntax import Type
from onward.mlir.types import ANYTHING, type_of
from onward.storage.writer import external

_LIGHT = 1024  # elements of a tensor that inference may want to read
_COPIED = ("node", "input", "output", "value_info")


def inferred_types(proto: onnx.ModelProto) -> dict[str, Type]:
    """Return the types that onnx infers, by the names of the values, those of inner graphs and algorithms included.

    The graph is inferred together with the algorithms that read its values. What onnx cannot infer is left out.
    """
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.MergeFrom(proto.opset_import)
    light.functions.MergeFrom(proto.functions)
    light.graph.name = proto.graph.name
    roots = [proto.graph, *(info.algorithm for info in proto.training_info)]
    for graph in roots:
        for field in _COPIED:
            getattr(light.graph, field).MergeFrom(getattr(graph, field))
        for tensor in graph.initializer:
            _copy_light(light.graph.initializer.add(), tensor)
    graphs = [_inferred(light)]
    for info in proto.training_info:
        alone = onnx.ModelProto(ir_version=proto.ir_version)
        alone.opset_import.MergeFrom(proto.opset_import)
        alone.functions.MergeFrom(proto.functions)
        alone.graph.CopyFrom(info.initialization)
        graphs.append(_inferred(alone))
    found: dict[str, Type] = {}
    for stated in _all_infos(graphs):
        kind = type_of(stated.type)
        if kind != ANYTHING and stated.name:
            found[stated.name] = kind if found.get(stated.name, kind) == kind else ANYTHING
    return found


def _inferred(model: onnx.ModelProto) -> onnx.GraphProto:
    try:
        return infer(model)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError):
        return onnx.GraphProto()  # what the file states is left


def _copy_light(target: onnx.TensorProto, tensor: onnx.TensorProto) -> None:
    """Copy a tensor; of a large one only the name, the type and the shape."""
    size = 1
    for dim in tensor.dims:
        size *= max(dim, 0)
    if size <= _LIGHT or (len(tensor.dims) <= 1 and tensor.data_type in (6, 7)):
        target.CopyFrom(tensor)
        return
    target.name, target.data_type = tensor.name, tensor.data_type
    target.dims.extend(tensor.dims)
    external(target, "light", None, None)


def _all_infos(graphs: list[Any]) -> Iterator[onnx.ValueInfoProto]:
    while graphs:
        graph = graphs.pop()
        yield from graph.value_info
        yield from graph.output
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
                graphs.extend(attribute.graphs)
