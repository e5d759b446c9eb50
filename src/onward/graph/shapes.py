"""Types and shapes of values: what is known, and onnx's own inference over a graph without its large tensors."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onward.graph.walk import subgraphs
from onward.storage import writer
from onward.storage.reader import describe

_INFERENCE_SIZE_LIMIT = 1024  # larger constants do not help shape inference and cost memory


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape if every dimension is known, else None."""
    if value.shape is None:
        return None
    dims = tuple(d if isinstance(d, int) else None for d in value.shape)
    return None if any(d is None for d in dims) else tuple(d for d in dims if d is not None)


def dims(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """Return per dimension an int, a symbol or None; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def infer_shapes(model: ir.Model, algorithm: ir.Graph | None = None, *, strict: bool = False) -> None:
    """Fill in the types and shapes of all values of `model`, by onnx's own inference with data propagation.

    With `algorithm`, the standard's combined graph is inferred and both graphs are filled in. Large initializers take
    part by type and shape only. With `strict`, an inconsistency raises `onnx.shape_inference.InferenceError`;
    without, what could be inferred is kept.
    """
    proto = _light_proto(model)
    if algorithm is not None:
        extra = _light_graph(algorithm)
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(proto.graph, field).extend(getattr(extra, field))
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=strict, strict_mode=strict, data_prop=True)
    nodes = list(model.graph) + ([] if algorithm is None else list(algorithm))
    merge_inferred(nodes, inferred.graph)


def _light_proto(model: ir.Model) -> onnx.ModelProto:
    """Serialize `model` with large initializers turned into inputs."""
    graph = model.graph
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in model.functions.values():
        writer.Writer().function(proto.functions.add(), function)
    proto.graph.CopyFrom(_light_graph(graph))
    return proto


def _light_graph(graph: ir.Graph) -> onnx.GraphProto:
    light = onnx.GraphProto(name=graph.name or "graph")
    given = set()
    for value in graph.inputs:
        writer.value_info(light.input.add(), value)
        given.add(value.name)
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.size > _INFERENCE_SIZE_LIMIT:
            if name not in given:
                writer.value_info(light.input.add(), value)
        else:
            writer.put_inline(light.initializer.add(), tensor)
            light.initializer[-1].name = name
    write = writer.Writer()
    for node in graph:
        write.node(light.node.add(), node)
        _stand_in(light.node[-1])
        for output in node.outputs:
            if output.name and output.type is not None and not output.is_graph_output():
                writer.value_info(light.value_info.add(), output)
    for value in graph.outputs:
        writer.value_info(light.output.add(), value)
    return light


def _stand_in(node: onnx.NodeProto) -> None:
    """Turn a node that onnx (1.23) has no or a wrong inference for into one with the same types and shapes."""
    if node.op_type == "STFT" and all(a.name != "onesided" for a in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))  # its default, which inference takes as 0
    # MeanVarianceNormalization's body fails inference in all types but float, and where axes is absent.
    if node.op_type in ("GroupNormalization", "MeanVarianceNormalization") and node.domain in ("", "ai.onnx"):
        node.op_type = "Identity"
        del node.input[1:]
        del node.attribute[:]


def merge_inferred(nodes: Iterable[ir.Node], proto: onnx.GraphProto) -> None:
    """Take over the types and shapes that onnx found for the serialized form of `nodes`."""
    infos = {info.name: info for info in [*proto.value_info, *proto.output]}
    _forget_sequence_symbols(infos.values())
    for node, node_proto in zip(nodes, proto.node, strict=True):
        for value in node.outputs:
            info = infos.get(value.name or "")
            if info is not None and info.HasField("type"):
                before = value.shape
                describe(value, info)
                if value.shape is None:  # what was known, such as a declared shape, stays known
                    value.shape = before
        inner = list(subgraphs(node))
        if inner:
            protos = [g for a in node_proto.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]
            for sub, sub_proto in zip(inner, protos, strict=True):
                merge_inferred(sub, sub_proto)


def _forget_sequence_symbols(infos: Iterable[onnx.ValueInfoProto]) -> None:
    """Remove the symbols that onnx made up for the elements of sequences.

    It gives the elements of a sequence one symbol although their sizes may differ, and hands it on to what is taken
    out of the sequence; a runtime that believes it reuses a buffer of the wrong size.
    """
    infos = list(infos)
    made_up: set[str] = set()
    for info in infos:
        element = info.type
        while element.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = element.WhichOneof("value")
            element = getattr(element, kind).elem_type
            if kind == "sequence_type":
                made_up.update(d.dim_param for d in element.tensor_type.shape.dim if d.dim_param.startswith("unk__"))
    if made_up:
        for info in infos:
            element = info.type
            while element.WhichOneof("value") in ("sequence_type", "optional_type"):
                element = getattr(element, element.WhichOneof("value")).elem_type
            for dim in element.tensor_type.shape.dim if element.HasField("tensor_type") else ():
                if dim.dim_param in made_up:
                    dim.ClearField("value")
