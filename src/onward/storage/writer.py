"""Convert onnx-ir to protobuf messages, the inverse of `reader`: what was read is written, and nothing else.

The caller decides where the data of tensors goes: `Writer(put)` calls `put` for each tensor, which fills in the
`TensorProto` with the data or with a reference to a data file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onward.storage import reader
from onward.storage.external_data import ExternalTensor, PackedExternalTensor
from onward.storage.reader import ProtoTensor, RawType, SparseTensor

Put = Callable[[onnx.TensorProto, ir.TensorProtocol], None]

STASH = "onward.stash"  # the location of tensors that `put_light` left out
LIGHT_SIZE = 1024  # elements: larger constants do not help shape inference and cost memory
_FUNCTION_VALUE_INFO_IR = 10  # the first IR version whose functions may describe their values


def put_inline(proto: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
    """Write a tensor with its data."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        proto.CopyFrom(tensor.raw)
        del proto.metadata_props[:]
        metadata(proto.metadata_props, tensor.metadata_props)
        return
    put_header(proto, tensor)
    if isinstance(tensor, ir.StringTensor):
        proto.string_data.extend(tensor.string_data())
    else:
        proto.raw_data = tensor.tobytes()


def put_reference(proto: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
    """Write a tensor; if it was read from external data, write a reference to the same place."""
    if not isinstance(tensor, ExternalTensor | PackedExternalTensor):
        put_inline(proto, tensor)
        return
    put_header(proto, tensor)
    place = tensor.reference
    external(proto, place.location, place.offset or None, place.length)
    for key, value in place.extra:
        proto.external_data.add(key=key, value=value)


def put_light(stash: list[ir.TensorProtocol]) -> Put:
    """Return a `put` that keeps the data of large tensors out of the message: it refers to their place in `stash`."""

    def put(proto: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
        if tensor.size <= LIGHT_SIZE or tensor.dtype == ir.DataType.STRING or _may_be_shape(tensor):
            put_inline(proto, tensor)
            return
        put_header(proto, tensor)
        external(proto, STASH, len(stash), None)
        stash.append(tensor)

    return put


def _may_be_shape(tensor: ir.TensorProtocol) -> bool:
    """Return whether onnx's strict inference reads the tensor; it refuses one that is external."""
    return tensor.dtype in (ir.DataType.INT64, ir.DataType.INT32) and len(tensor.shape) <= 1


def put_header(proto: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
    """Write everything of a tensor except its data."""
    if tensor.name:
        proto.name = tensor.name
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    proto.data_type = tensor.dtype.value
    proto.dims.extend(tensor.shape.numpy())
    metadata(proto.metadata_props, tensor.metadata_props)


def external(proto: onnx.TensorProto, location: str, offset: int | None, length: int | None) -> None:
    """Write a reference to data in a file."""
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            proto.external_data.add(key=key, value=str(value))


def metadata(field: Any, entries: Mapping[str, str]) -> None:
    """Write metadata in the given order."""
    for key, value in entries.items():
        field.add(key=key, value=value)


class Writer:
    """Writes the graphs of one model."""

    def __init__(self, put: Put = put_inline, *, ir_version: int = 10) -> None:
        self.put = put
        self.ir_version = ir_version

    def model(self, proto: onnx.ModelProto, model: ir.Model) -> None:
        """Write the inference model: everything except `training_info`."""
        if model.ir_version:
            proto.ir_version = model.ir_version
        for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
            value = getattr(model, name)
            if value:
                setattr(proto, name, value)
        for domain, version in model.opset_imports.items():
            proto.opset_import.add(domain=domain, version=version)
        metadata(proto.metadata_props, model.metadata_props)
        for configuration in model.device_configurations:
            proto.configuration.add().CopyFrom(ir.serde.serialize_model_configuration(configuration))
        self.graph(proto.graph, model.graph)
        for function in model.functions.values():
            self.function(proto.functions.add(), function)

    def graph(self, proto: onnx.GraphProto, graph: ir.Graph) -> None:
        """Write a graph and the graphs inside it."""
        if graph.name:
            proto.name = graph.name
        if graph.doc_string:
            proto.doc_string = graph.doc_string
        inputs = {v.name for v in graph.inputs}
        outputs = {v.name for v in graph.outputs}
        for value in graph.inputs:
            value_info(proto.input.add(), value)
            if value.name not in graph.initializers:
                _quantization(proto, value)
        for name, value in graph.initializers.items():
            _quantization(proto, value)
            if name not in inputs and name not in outputs and _says_more_than_its_tensor(value):
                value_info(proto.value_info.add(), value)
            tensor = value.const_value
            if tensor is not None:
                target = proto.initializer.add()
                self.put(target, tensor)
                target.name = name
        sparse = graph.meta.get(reader.SPARSE, ())
        for tensor in sparse:
            self._sparse(proto.sparse_initializer.add(), tensor)
        for node in graph:
            self.node(proto.node.add(), node)
            for value in node.outputs:
                if value.name:
                    _quantization(proto, value)
                    if value.name not in outputs:
                        _maybe_info(proto.value_info, value)
        if sparse:
            self._sparse_infos(proto, graph)
        special = graph.meta.get(reader.OUTPUT_INFO, {})
        for value in graph.outputs:
            info = proto.output.add()
            if value.name in special and value.producer() is None:
                info.ParseFromString(special[value.name])
            else:
                value_info(info, value)
        for data in graph.meta.get(reader.QUANTIZATION, ()):
            proto.quantization_annotation.add().ParseFromString(data)
        _leftover_infos(proto.value_info, graph, [*proto.input, *proto.output])
        metadata(proto.metadata_props, graph.metadata_props)

    def _sparse_infos(self, proto: onnx.GraphProto, graph: ir.Graph) -> None:
        """Write the entries of the sparse initializers that had one; onnx-ir has no list of their values."""
        names = {s.values.name for s in proto.sparse_initializer}
        seen: set[str] = set()
        for node in graph:
            for value in node.inputs:
                if value is not None and value.name in names and value.name not in seen:
                    seen.add(value.name or "")
                    _quantization(proto, value)
                    if value.meta.get(reader.VALUE_INFO):
                        value_info(proto.value_info.add(), value)

    def function(self, proto: onnx.FunctionProto, function: ir.Function) -> None:
        """Write a model-local function."""
        for name in ("domain", "name", "overload", "doc_string"):
            value = getattr(function, name)
            if value:
                setattr(proto, name, value)
        for domain, version in function.opset_imports.items():
            proto.opset_import.add(domain=domain, version=version)
        metadata(proto.metadata_props, function.metadata_props)
        describe = self.ir_version >= _FUNCTION_VALUE_INFO_IR
        for value in function.inputs:
            proto.input.append(value.name or "")
            if describe:
                _maybe_info(proto.value_info, value)
        proto.output.extend(v.name or "" for v in function.outputs)
        for attribute in function.attributes.values():
            if attribute.type == ir.AttributeType.UNDEFINED or attribute.value is None:
                proto.attribute.append(attribute.name)
            else:
                self.attribute(proto.attribute_proto.add(), attribute)
        for node in function:
            self.node(proto.node.add(), node)
            for value in node.outputs:
                if describe and value.name:
                    _maybe_info(proto.value_info, value)
        if describe:
            _leftover_infos(proto.value_info, function.graph, [])

    def node(self, proto: onnx.NodeProto, node: ir.Node) -> None:
        """Write a node."""
        proto.op_type = node.op_type
        if node.domain:
            proto.domain = node.domain
        if node.name:
            proto.name = node.name
        if node.overload:
            proto.overload = node.overload
        if node.doc_string:
            proto.doc_string = node.doc_string
        proto.input.extend(["" if v is None else v.name or "" for v in node.inputs])
        proto.output.extend([v.name or "" for v in node.outputs])
        for attribute in node.attributes.values():
            self.attribute(proto.attribute.add(), attribute)
        for data in node.meta.get(reader.DEVICES, ()):
            proto.device_configurations.add().ParseFromString(data)
        if node.metadata_props:
            metadata(proto.metadata_props, node.metadata_props)

    def attribute(self, proto: onnx.AttributeProto, attribute: ir.Attr) -> None:
        """Write an attribute of any kind."""
        proto.name = attribute.name
        if attribute.doc_string:
            proto.doc_string = attribute.doc_string
        kind, value = attribute.type, attribute.value
        if kind != ir.AttributeType.UNDEFINED:
            proto.type = kind.value  # type: ignore[assignment]  # the enum's own number
        if attribute.is_ref():
            proto.ref_attr_name = attribute.ref_attr_name or ""
            return
        if kind == ir.AttributeType.UNDEFINED:
            return
        _WRITE[kind](self, proto, value)

    def _sparse(self, proto: onnx.SparseTensorProto, tensor: SparseTensor) -> onnx.SparseTensorProto:
        self._tensors([proto.values, proto.indices], [tensor.values, tensor.indices])
        proto.dims.extend(tensor.dims)
        return proto

    def _graphs(self, protos: Iterable[onnx.GraphProto], graphs: Iterable[ir.Graph]) -> None:
        for proto, graph in zip(protos, graphs, strict=True):
            proto.SetInParent()
            self.graph(proto, graph)

    def _tensors(self, protos: Iterable[onnx.TensorProto], tensors: Iterable[ir.TensorProtocol]) -> None:
        for proto, tensor in zip(protos, tensors, strict=True):
            self.put(proto, tensor)
            if not isinstance(tensor, ProtoTensor) and tensor.name:
                proto.name = tensor.name


def _set(field: str) -> Callable[[Writer, Any, Any], object]:
    return lambda writer, proto, value: setattr(proto, field, value)


def _extend(field: str) -> Callable[[Writer, Any, Any], object]:
    return lambda writer, proto, value: getattr(proto, field).extend(value)


_WRITE: dict[ir.AttributeType, Callable[[Writer, Any, Any], object]] = {
    ir.AttributeType.INT: _set("i"),
    ir.AttributeType.FLOAT: _set("f"),
    ir.AttributeType.STRING: lambda w, a, v: setattr(a, "s", _bytes(v)),
    ir.AttributeType.INTS: _extend("ints"),
    ir.AttributeType.FLOATS: _extend("floats"),
    ir.AttributeType.STRINGS: lambda w, a, v: a.strings.extend([_bytes(s) for s in v]),
    ir.AttributeType.TENSOR: lambda w, a, v: w._tensors([a.t], [v]),
    ir.AttributeType.TENSORS: lambda w, a, v: w._tensors([a.tensors.add() for _ in v], v),
    ir.AttributeType.GRAPH: lambda w, a, v: w._graphs([a.g], [v]),
    ir.AttributeType.GRAPHS: lambda w, a, v: w._graphs([a.graphs.add() for _ in v], v),
    ir.AttributeType.SPARSE_TENSOR: lambda w, a, v: w._sparse(a.sparse_tensor, v),
    ir.AttributeType.SPARSE_TENSORS: lambda w, a, v: [w._sparse(a.sparse_tensors.add(), s) for s in v],
    ir.AttributeType.TYPE_PROTO: lambda w, a, v: type_and_shape(a.tp, v.type, v.shape),
    ir.AttributeType.TYPE_PROTOS: lambda w, a, v: _types(a, v),
}


def value_info(proto: onnx.ValueInfoProto, value: ir.Value) -> None:
    """Write a value's name, type, shape, documentation and metadata."""
    proto.name = value.name or ""
    if value.type is not None:
        type_and_shape(proto.type, value.type, value.shape)
    if value.doc_string:
        proto.doc_string = value.doc_string
    if value.metadata_props:
        metadata(proto.metadata_props, value.metadata_props)


def type_and_shape(proto: onnx.TypeProto, kind: ir.TypeProtocol | None, shape: Any) -> None:
    """Write a type with its shape, which belongs to the innermost tensor type."""
    if isinstance(kind, RawType):
        proto.ParseFromString(kind.data)
        return
    if kind is None:
        return
    ir.serde.serialize_type_into(proto, kind)
    if shape is not None:
        ir.serde.serialize_shape_into(proto, shape)


def _types(proto: onnx.AttributeProto, types: Iterable[ir.TypeAndShape]) -> None:
    for each in types:
        type_and_shape(proto.type_protos.add(), each.type, each.shape)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8")


def _maybe_info(field: Any, value: ir.Value) -> None:
    if value.type is not None or value.doc_string or value.metadata_props:
        value_info(field.add(), value)


def _says_more_than_its_tensor(value: ir.Value) -> bool:
    return bool(value.meta.get(reader.VALUE_INFO) or value.doc_string or value.metadata_props)


def _quantization(proto: onnx.GraphProto, value: ir.Value) -> None:
    names = value.meta.get(reader.IR_QUANTIZATION)
    if names is not None:
        annotation = proto.quantization_annotation.add(tensor_name=value.name or "")
        metadata(annotation.quant_parameter_tensor_names, names)


def _leftover_infos(field: Any, graph: ir.Graph, declared: Iterable[onnx.ValueInfoProto]) -> None:
    """Write the entries that described no value or repeated one, unless they are no longer true.

    They are not if a value has got the name since then, or if an input or output has got another type or shape.
    """
    leftovers = graph.meta.get(reader.VALUE_INFO, ())
    if leftovers:
        written = {info.name for info in field}
        now = {info.name: info for info in declared}
        for data in leftovers:
            info = onnx.ValueInfoProto.FromString(data)
            if info.name not in written and not (info.name in now and _contradict(info.type, now[info.name].type)):
                field.add().CopyFrom(info)


def _contradict(one: onnx.TypeProto, other: onnx.TypeProto) -> bool:
    """Return whether no tensor can have both types; names of dimensions may differ."""
    a, b = one.tensor_type, other.tensor_type
    if not (one.HasField("tensor_type") and other.HasField("tensor_type")):
        return False
    if a.elem_type != b.elem_type:
        return True
    if not (a.HasField("shape") and b.HasField("shape")):
        return False
    pairs = zip(a.shape.dim, b.shape.dim, strict=False)
    known = [(d.dim_value, e.dim_value) for d, e in pairs if d.HasField("dim_value") and e.HasField("dim_value")]
    return len(a.shape.dim) != len(b.shape.dim) or any(x != y for x, y in known)
