"""Convert protobuf messages to onnx-ir without losing anything.

onnx-ir's own reader drops training_info and sparse initializers, refuses map types and sparse attributes, and reads
external data relative to the working directory. This reader keeps what onnx-ir has no place for in `meta`, from where
`writer` writes it back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import Diagnostic, ModelError, named_nodes
from onward.storage.external_data import Folder
from onward.storage.limits import DEFAULT, M102, M103, M106, Limits, check_tensor
from onward.storage.sparing import LARGE, without_zeros

M110 = "M110"

# Keys of `meta` for what onnx-ir has no place for: serialised messages, and `SparseTensor`s.
SPARSE = "onward.sparse_initializer"
VALUE_INFO = "onward.value_info"  # of graphs: entries that describe no value; of values: True if they had an entry
OUTPUT_INFO = "onward.output_info"  # of graphs: entries of outputs that differ from the entry of the same input
QUANTIZATION = "onward.quantization_annotation"
DEVICES = "onward.device_configurations"
IR_QUANTIZATION = "quant_parameter_tensor_names"  # onnx-ir's own key

Scope = dict[str, ir.Value]


class RawType(ir.TypeProtocol):
    """A type that onnx-ir cannot express (a map or an opaque type), in its serialised form."""

    def __init__(self, data: bytes, denotation: str | None = None) -> None:
        self.data = data
        self.denotation = denotation
        self.dtype = ir.DataType.UNDEFINED
        self.elem_type = ir.DataType.UNDEFINED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawType) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return "RawType(...)"


@dataclasses.dataclass(frozen=True)
class SparseTensor:
    """A sparse tensor, for which onnx-ir has no class."""

    values: ir.TensorProtocol
    indices: ir.TensorProtocol
    dims: tuple[int, ...]


class ProtoTensor(ir.serde.TensorProtoTensor):
    """A tensor over a `TensorProto`. Renaming it does not change a message that the caller owns."""

    __slots__ = ("_owned",)

    def __init__(self, proto: onnx.TensorProto, owned: bool) -> None:
        super().__init__(proto)
        self._owned = owned

    @property
    def name(self) -> str:
        return str(self._proto.name)

    @name.setter
    def name(self, value: str | None) -> None:
        if (value or "") == self._proto.name:
            return
        if not self._owned:
            copy = onnx.TensorProto()
            copy.CopyFrom(self._proto)
            self._proto, self._owned = copy, True
        self._proto.name = value or ""


def _own(proto: onnx.TensorProto) -> ir.TensorProtocol:
    """Return a tensor that does not keep the file in memory of which the message is a part.

    Protobuf frees a parsed file only when no message of it is in use, and copies the bytes at each access: a large
    model would be in memory twice while it trains.
    """
    read = ProtoTensor(proto, owned=True)
    if not proto.HasField("raw_data") or read.nbytes < LARGE or read.dtype.bitwidth < 8:
        copy = onnx.TensorProto()
        copy.CopyFrom(proto)
        return ProtoTensor(copy, owned=True)
    return ir.Tensor(
        without_zeros(read.numpy()),
        dtype=read.dtype,
        shape=read.shape,
        name=proto.name,
        doc_string=proto.doc_string or None,
        metadata_props=metadata(proto.metadata_props),
    )


class Reader:
    """Reads the graphs of one model. Collects errors in `problems`, so that all of them are reported at once."""

    def __init__(self, folder: Folder, *, owned: bool, limits: Limits = DEFAULT) -> None:
        self.folder = folder
        self.owned = owned
        self.limits = limits
        self.problems: list[Diagnostic] = []
        self._bytes = 0
        self._place: list[str] = []

    def report(self, code: str, message: str, *, found: str = "", needed: str = "") -> None:
        self.problems.append(Diagnostic(code, message, ", ".join(self._place), found, needed))

    def graph(self, proto: onnx.GraphProto, scopes: list[Scope], place: str = "graph") -> ir.Graph:
        """Return the graph. Values from outside are looked up in `scopes`, of which the last is the innermost.

        The graph's own values stay in `scopes` for the graphs inside it; the caller removes them.
        """
        self._place.append(f"{place} `{proto.name}`" if proto.name else place)
        infos = {info.name: info for info in proto.value_info}
        annotations = {a.tensor_name: a for a in proto.quantization_annotation}
        values: Scope = {}
        scopes.append(values)
        inputs = []
        for info in proto.input:
            value = self._declare(values, info.name, "input")
            self.describe(value, info)
            inputs.append(value)
        initializers = self._initializers(proto, values, infos)
        sparse = [self._sparse_initializer(s, values, infos) for s in proto.sparse_initializer]
        self._declare_outputs(proto.node, values, infos)
        nodes = [self.node(n, scopes, name) for n, name in zip(proto.node, named_nodes(proto.node), strict=True)]
        outputs, output_infos = [], {}
        for info in proto.output:
            known = values.get(info.name)
            if known is None:
                known = ir.Value(name=info.name)
                self.describe(known, info)
            elif known.is_graph_input() or known.producer() is None:
                if not _same_info(known, info):
                    output_infos[info.name] = info.SerializeToString()
            else:
                self.describe(known, info)
            outputs.append(known)
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=proto.doc_string or None,
            name=proto.name or None,
            metadata_props=metadata(proto.metadata_props),
        )
        if output_infos:
            graph.meta[OUTPUT_INFO] = output_infos
        if proto.sparse_initializer:
            graph.meta[SPARSE] = sparse
        described = {info.name for info in [*proto.input, *proto.output]}
        rest = [i for n, i in infos.items() if n in described or n not in values]
        if rest:
            graph.meta[VALUE_INFO] = [i.SerializeToString() for i in rest]
        for name, annotation in annotations.items():
            if name in values:
                values[name].meta[IR_QUANTIZATION] = metadata(annotation.quant_parameter_tensor_names) or {}
            else:
                graph.meta.setdefault(QUANTIZATION, []).append(annotation.SerializeToString())
        self._place.pop()
        return graph

    def function(self, proto: onnx.FunctionProto) -> ir.Function:
        """Return a model-local function."""
        self._place.append(f"function `{proto.name}`")
        infos = {info.name: info for info in proto.value_info}
        values: Scope = {}
        scopes = [values]
        inputs = []
        for name in proto.input:
            value = self._declare(values, name, "input")
            if name in infos:
                self.describe(value, infos[name])
            inputs.append(value)
        self._declare_outputs(proto.node, values, infos)
        nodes = [self.node(n, scopes, name) for n, name in zip(proto.node, named_nodes(proto.node), strict=True)]
        outputs = []
        for name in proto.output:
            if name not in values:
                self.report(M110, f"function output `{name}` is not defined in the function")
            outputs.append(values.setdefault(name, ir.Value(name=name)))
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            doc_string=proto.doc_string or None,
            opset_imports={o.domain: o.version for o in proto.opset_import},
            name=proto.name,
            metadata_props=metadata(proto.metadata_props),
        )
        rest = [i for n, i in infos.items() if n not in values]
        if rest:
            graph.meta[VALUE_INFO] = [i.SerializeToString() for i in rest]
        attributes = [self.attribute(a, scopes) for a in proto.attribute_proto]
        attributes += [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in proto.attribute]
        self._place.pop()
        return ir.Function(
            domain=proto.domain, name=proto.name, overload=proto.overload, graph=graph, attributes=attributes
        )

    def node(self, proto: onnx.NodeProto, scopes: list[Scope], place: str) -> ir.Node:
        """Return a node. Its outputs must be declared already."""
        self._place.append(place)
        own = scopes[-1]
        inputs: list[ir.Value | None] = []
        for name in proto.input:
            if not name:
                inputs.append(None)
                continue
            found = own.get(name)
            if found is None and len(scopes) > 1:
                found = next((s[name] for s in reversed(scopes) if name in s), None)
            if found is None:  # the model is invalid, which `check` reports; the name is kept
                found = own[name] = ir.Value(name=name)
            inputs.append(found)
        outputs = [own[name] if name else ir.Value(name="") for name in proto.output]
        fresh = [v if v.producer() is None else ir.Value(name=v.name) for v in outputs]  # reported by `_declare`
        attributes = [self.attribute(a, scopes) for a in proto.attribute]
        if len({a.name for a in attributes}) != len(attributes):
            self.report(M110, "an attribute is given twice")
        node = ir.Node(
            proto.domain,
            proto.op_type,
            inputs,
            attributes,
            overload=proto.overload,
            outputs=fresh,
            name=proto.name,  # not None: onnx-ir would make up a name
            doc_string=proto.doc_string or None,
            metadata_props=metadata(proto.metadata_props),
        )
        if proto.device_configurations:
            node.meta[DEVICES] = [d.SerializeToString() for d in proto.device_configurations]
        self._place.pop()
        return node

    def attribute(self, proto: onnx.AttributeProto, scopes: list[Scope]) -> ir.Attr:
        """Return an attribute of any of the standard's kinds."""
        doc = proto.doc_string or None
        try:
            kind = ir.AttributeType(proto.type)
        except ValueError:
            self.report(M110, f"attribute `{proto.name}` has an unknown type", found=str(proto.type))
            return ir.Attr(proto.name, ir.AttributeType.UNDEFINED, None, doc_string=doc)
        if proto.ref_attr_name:
            return ir.RefAttr(proto.name, proto.ref_attr_name, kind, doc_string=doc)
        if kind == ir.AttributeType.UNDEFINED:  # files older than IR version 3 leave it out
            kind = _kind_of(proto)
        if kind == ir.AttributeType.UNDEFINED:
            return ir.Attr(proto.name, kind, None, doc_string=doc)
        if kind in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            self._place.append(f"attribute `{proto.name}`")
            if len(scopes) > self.limits.nesting:
                self.report(M103, "graphs are nested too deeply")
                raise ModelError(self.problems)
            protos = [proto.g] if kind == ir.AttributeType.GRAPH else list(proto.graphs)
            graphs = [self._inner(g, scopes) for g in protos]
            self._place.pop()
            if kind == ir.AttributeType.GRAPH:
                return ir.AttrGraph(proto.name, graphs[0], doc_string=doc)
            return ir.AttrGraphs(proto.name, graphs, doc_string=doc)
        return ir.Attr(proto.name, kind, _READ[kind](self, proto), doc_string=doc)

    def _inner(self, proto: onnx.GraphProto, scopes: list[Scope]) -> ir.Graph:
        graph = self.graph(proto, scopes, "subgraph")
        scopes.pop()
        return graph

    def tensor(self, proto: onnx.TensorProto, where: str) -> ir.TensorProtocol:
        """Return a tensor; an empty one, after reporting it, if its type, shape and data do not agree."""
        place = ", ".join([*self._place, where])
        found = list(check_tensor(proto, place, self.limits))
        if found:
            self.problems += found
            return ir.tensor([], ir.DataType.FLOAT, name=proto.name)
        if proto.data_type == onnx.TensorProto.STRING:
            return ir.StringTensor(
                list(proto.string_data),
                shape=ir.Shape(list(proto.dims)),
                name=proto.name,
                doc_string=proto.doc_string or None,
                metadata_props=metadata(proto.metadata_props),
            )
        if proto.data_location != onnx.TensorProto.EXTERNAL:
            return _own(proto) if self.owned else ProtoTensor(proto, owned=False)
        try:
            tensor = self.folder.tensor(proto, place)
        except ModelError as error:
            self.problems += error.diagnostics
            return ir.tensor([], ir.DataType.FLOAT, name=proto.name)
        self._bytes += tensor.nbytes
        if self._bytes > self.limits.tensor_bytes:
            self.report(M102, "the tensors need too much memory", needed=f"{self.limits.tensor_bytes:,} bytes at most")
            raise ModelError(self.problems)
        return tensor

    def _initializers(
        self, proto: onnx.GraphProto, values: Scope, infos: dict[str, onnx.ValueInfoProto]
    ) -> list[ir.Value]:
        found: dict[str, ir.Value] = {}
        for index, tensor_proto in enumerate(proto.initializer):
            name = tensor_proto.name
            tensor = self.tensor(tensor_proto, f"initializer `{name}`" if name else f"initializer {index}")
            if not name:
                self.report(M110, f"initializer {index} has no name")
                continue
            if name in found:
                self.report(M110, f"initializer `{name}` is given twice")
                continue
            value = values.get(name)
            if value is None:
                value = values[name] = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=_shape_of(tensor))
                if name in infos:
                    self.describe(value, infos[name])
                    value.meta[VALUE_INFO] = True
            value.const_value = tensor
            found[name] = value
        return list(found.values())

    def _sparse_initializer(
        self, proto: onnx.SparseTensorProto, values: Scope, infos: dict[str, onnx.ValueInfoProto]
    ) -> SparseTensor:
        """Return a sparse initializer and declare its value."""
        name = proto.values.name
        tensor = self.sparse(proto, f"sparse initializer `{name}`")
        if name and name not in values:
            value = self._declare(values, name, "sparse initializer")
            value.type, value.shape = ir.TensorType(tensor.values.dtype), ir.Shape(list(proto.dims))
            if name in infos:
                self.describe(value, infos[name])
                value.meta[VALUE_INFO] = True
        return tensor

    def sparse(self, proto: onnx.SparseTensorProto, where: str) -> SparseTensor:
        """Return a sparse tensor, whose parts are checked like any other tensor."""
        if any(d < 0 for d in proto.dims) or math.prod(max(d, 1) for d in proto.dims) > self.limits.tensor_bytes:
            self.report(M106, f"sparse tensor `{proto.values.name}` has bad dimensions", found=str(list(proto.dims)))
        return SparseTensor(
            self.tensor(proto.values, where), self.tensor(proto.indices, f"{where}, indices"), tuple(proto.dims)
        )

    def _declare(self, values: Scope, name: str, kind: str) -> ir.Value:
        if name in values:
            self.report(M110, f"{kind} `{name}` is defined twice", needed="one definition of each name in a graph")
        value = values[name] = ir.Value(name=name)
        return value

    def _declare_outputs(
        self, nodes: Iterable[onnx.NodeProto], values: Scope, infos: dict[str, onnx.ValueInfoProto]
    ) -> None:
        for node in nodes:
            for name in node.output:
                if name:
                    value = self._declare(values, name, "output")
                    if name in infos:
                        self.describe(value, infos[name])

    def describe(self, value: ir.Value, info: onnx.ValueInfoProto) -> None:
        """Give `value` the type, shape, documentation and metadata of `info`."""
        value.type, value.shape = self.type_and_shape(info.type)
        value.doc_string = info.doc_string or None
        if info.metadata_props:
            value.metadata_props.update(metadata(info.metadata_props) or {})

    def type_and_shape(self, proto: onnx.TypeProto) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        """Return the type and shape; a `RawType` for what onnx-ir cannot express."""
        inner, wrappers = proto, 0
        while inner.HasField("sequence_type") or inner.HasField("optional_type"):
            inner = (inner.sequence_type if inner.HasField("sequence_type") else inner.optional_type).elem_type
            wrappers += 1
            if wrappers > self.limits.nesting:
                self.report(M103, "types are nested too deeply")
                return None, None
        field = inner.WhichOneof("value")
        if field is None and not wrappers and not proto.denotation:
            return None, None
        if field not in ("tensor_type", "sparse_tensor_type") or not getattr(inner, field).HasField("elem_type"):
            return RawType(proto.SerializeToString(), proto.denotation or None), None
        number = getattr(inner, field).elem_type
        if number not in ir.DataType._value2member_map_:
            self.report(M106, "a value has an unknown element type", found=str(number))
            return None, None
        kind = ir.serde.deserialize_type_proto_for_type(proto)
        return kind, ir.serde.deserialize_type_proto_for_shape(proto)


def _where(proto: onnx.AttributeProto) -> str:
    return f"attribute `{proto.name}`"


# How the value of each kind of attribute is read, except graphs, which also need the scopes.
_READ: dict[ir.AttributeType, Callable[[Reader, onnx.AttributeProto], Any]] = {
    ir.AttributeType.INT: lambda r, a: a.i,
    ir.AttributeType.FLOAT: lambda r, a: a.f,
    ir.AttributeType.STRING: lambda r, a: _text(a.s),
    ir.AttributeType.INTS: lambda r, a: tuple(a.ints),
    ir.AttributeType.FLOATS: lambda r, a: tuple(a.floats),
    ir.AttributeType.STRINGS: lambda r, a: tuple(_text(s) for s in a.strings),
    ir.AttributeType.TENSOR: lambda r, a: r.tensor(a.t, _where(a)),
    ir.AttributeType.TENSORS: lambda r, a: tuple(r.tensor(t, _where(a)) for t in a.tensors),
    ir.AttributeType.SPARSE_TENSOR: lambda r, a: r.sparse(a.sparse_tensor, _where(a)),
    ir.AttributeType.SPARSE_TENSORS: lambda r, a: [r.sparse(s, _where(a)) for s in a.sparse_tensors],
    ir.AttributeType.TYPE_PROTO: lambda r, a: ir.TypeAndShape(*r.type_and_shape(a.tp)),
    ir.AttributeType.TYPE_PROTOS: lambda r, a: [ir.TypeAndShape(*r.type_and_shape(t)) for t in a.type_protos],
}


def metadata(entries: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Return metadata entries as a dict, or None where there are none."""
    return {e.key: e.value for e in entries} if len(entries) else None


def _shape_of(tensor: ir.TensorProtocol) -> ir.Shape:
    return ir.Shape(list(tensor.shape.numpy()))


def _text(data: bytes) -> str | bytes:
    """Return the text of a string attribute, or its bytes if they are not UTF-8, as custom operators may have them."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _same_info(value: ir.Value, info: onnx.ValueInfoProto) -> bool:
    from onward.storage.writer import value_info

    ours = onnx.ValueInfoProto()
    value_info(ours, value)
    return bool(ours == info)


_FIELDS = {
    "i": "INT", "f": "FLOAT", "s": "STRING", "t": "TENSOR", "g": "GRAPH", "tp": "TYPE_PROTO",
    "sparse_tensor": "SPARSE_TENSOR", "ints": "INTS", "floats": "FLOATS", "strings": "STRINGS", "tensors": "TENSORS",
    "graphs": "GRAPHS", "type_protos": "TYPE_PROTOS", "sparse_tensors": "SPARSE_TENSORS",
}  # fmt: skip


def _kind_of(proto: onnx.AttributeProto) -> ir.AttributeType:
    """Return the kind of an attribute without a type, from the one field that is set."""
    present = {f.name for f, _ in proto.ListFields()} & _FIELDS.keys()
    return ir.AttributeType[_FIELDS[present.pop()]] if len(present) == 1 else ir.AttributeType.UNDEFINED
