"""The file that a training model was made from, so that the tuned file is the same file with other weights.

Training works at a newer operator set than most files have. A model that was converted for it carries the file as it
was, without its weights, in its metadata (`onward.origin`: protobuf, compressed, in base 64), with a fingerprint of the
converted graph. `write_back` puts the weights of now into it: operator set, IR version, names, order and text are those
of the file, and a runtime that read it reads the tuned one.

That is exact where the conversion is the only difference. So there is no note where making the model trainable changed
more (a new head, recovered batch normalisation, separate copies of a shared weight, operators of another domain), and
the note does not count once the graph has another fingerprint: whoever edits the graph gets the graph that was edited.
"""

from __future__ import annotations

import base64
import binascii
import collections
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import ModelError
from onward.graph.walk import is_sorted, subgraphs
from onward.model import serde
from onward.model.stash import to_light
from onward.model.training_model import TrainingModel
from onward.storage.writer import STASH, metadata, put_inline

ORIGIN = "onward.origin"
_MOST = 64 << 20  # bytes of a file without its weights; more is not decompressed
_MOST_LEFT = 1 << 20  # bytes of tensors that the converted graph does not hold: a note is no second file
_STANDARD = ("", "ai.onnx")

Kind = tuple[int, tuple[int, ...]]
"""Element type and shape of a tensor."""


@dataclasses.dataclass
class Origin:
    """A file before and after its conversion."""

    file: TrainingModel
    shared: dict[str, Kind]
    """The constants that both graphs hold under one name."""
    fingerprint: str

    @classmethod
    def of(cls, file: TrainingModel, converted: TrainingModel) -> Origin | None:
        """Return what there is to remember of `file`; None if it cannot be written back."""
        if file.entries or file.ir.functions:
            return None
        if any(node.domain not in _STANDARD for graph in _graphs(file.graph) for node in graph):
            return None
        if not is_sorted(file.graph):
            return None  # what we write is in order
        here, there = _kinds(_constants(file.graph)), _kinds(_constants(converted.graph))
        shared = {name: kind for name, kind in here.items() if there.get(name) == kind}
        return cls(file, shared, _fingerprint(converted.graph, shared))

    def converted_again(self, before: TrainingModel, after: TrainingModel) -> Origin | None:
        """Return the same of a model that was converted from `before` to `after`; None if it was changed until then."""
        if _fingerprint(before.graph, self.shared) != self.fingerprint:
            return None
        return dataclasses.replace(self, fingerprint=_fingerprint(after.graph, self.shared))

    def note(self, model: TrainingModel) -> None:
        """Write the note into `model`, if it has another operator set than the file, and nothing else is different."""
        if model.opset == self.file.opset or _fingerprint(model.graph, self.shared) != self.fingerprint:
            return
        trained = {name for entry in model.entries for name in entry.update_binding}
        if any(name not in self.shared for name in trained if name in model.graph.initializers):
            return  # the file has no place for what training changes
        proto, stash = to_light(self.file)
        left = 0
        for name, tensor in _tensors(proto.graph):
            if name in self.shared:
                for field in ("raw_data", "external_data", "float_data", "double_data", "int32_data", "int64_data"):
                    tensor.ClearField(field)
                tensor.data_location = onnx.TensorProto.EXTERNAL
            elif tensor.data_location == onnx.TensorProto.EXTERNAL:
                data = {e.key: e.value for e in tensor.external_data}
                assert data["location"] == STASH
                left += stash[int(data["offset"])].nbytes
                if left > _MOST_LEFT:
                    return
                tensor.Clear()
                put_inline(tensor, stash[int(data["offset"])])
        packed = base64.b64encode(zlib.compress(proto.SerializeToString(deterministic=True))).decode()
        model.ir.metadata_props[ORIGIN] = json.dumps({"graph": self.fingerprint, "model": packed}, sort_keys=True)


def write_back(clean: TrainingModel) -> onnx.ModelProto | None:
    """Return the file that `clean`, an inference model, was made from, with the weights of `clean`.

    None if there is no such file, or the graph of `clean` is another one. The note disappears from `clean`.
    """
    text = clean.ir.metadata_props.pop(ORIGIN, None)
    if text is None:
        return None
    try:
        note = json.loads(text)
        unpack = zlib.decompressobj()
        proto = serde.read_proto(unpack.decompress(base64.b64decode(note["model"]), _MOST), external_data=False)
    except (ValueError, KeyError, TypeError, zlib.error, binascii.Error, ModelError):
        return None  # somebody else's metadata
    wanted = {
        name: (tensor.data_type, tuple(tensor.dims))
        for name, tensor in _tensors(proto.graph)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    if note.get("graph") != _fingerprint(clean.graph, wanted):
        return None
    current = dict(_constants(clean.graph))
    for name, tensor in _tensors(proto.graph):
        if name in wanted:
            label = tensor.name
            tensor.Clear()
            put_inline(tensor, current[name])
            tensor.name = label
    del proto.metadata_props[:]
    metadata(proto.metadata_props, clean.ir.metadata_props)
    return proto


def _graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield a graph and those inside it."""
    yield graph
    for node in graph:
        for inner in subgraphs(node):
            yield from _graphs(inner)


def _constants(graph: ir.Graph) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield name and tensor of each initializer and `Constant` node, of the graphs inside too."""
    for part in _graphs(graph):
        for name, value in part.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
        for node in part:
            tensor = _tensor_of(node)
            if tensor is not None:
                yield node.outputs[0].name or "", tensor


def _tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a `Constant` node that holds one as a tensor; conversion and training leave the others."""
    value = node.attributes.get("value") if node.op_type == "Constant" and node.domain in _STANDARD else None
    return None if value is None or value.type != ir.AttributeType.TENSOR else value.as_tensor()


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the same as `_constants`, of a message."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and attribute.HasField("t"):
                yield node.output[0], attribute.t
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _tensors(inner)


def _kind(tensor: ir.TensorProtocol) -> Kind:
    return tensor.dtype.value, tuple(tensor.shape.numpy())


def _kinds(constants: Iterable[tuple[str, ir.TensorProtocol]]) -> dict[str, Kind]:
    """Return what is known of the constants whose name is their own: branches may use one name each."""
    found = list(constants)
    often = collections.Counter(name for name, _ in found)
    strings = ir.DataType.STRING
    return {name: _kind(t) for name, t in found if name and often[name] == 1 and t.dtype != strings}


def _fingerprint(graph: ir.Graph, shared: Mapping[str, Kind]) -> str:
    """Return a hash of all that decides what a graph computes, but for the numbers of the constants in `shared`.

    Whether a constant is an initializer or a `Constant` node, and in which graph, makes no difference.
    """
    found = hashlib.sha256()

    def add(*parts: Any) -> None:
        found.update(repr(parts).encode())

    for name, tensor in sorted(_constants(graph), key=lambda c: c[0]):
        known = shared.get(name) == _kind(tensor)
        add(name, _kind(tensor), "shared" if known else _digest(tensor))
    _add_graph(graph, add)
    return found.hexdigest()


def _digest(tensor: ir.TensorProtocol) -> str:
    data = repr(tensor.numpy().tolist()).encode() if tensor.dtype == ir.DataType.STRING else tensor.tobytes()
    return hashlib.sha256(data).hexdigest()


def _add_graph(graph: ir.Graph, add: Any) -> None:
    add([v.name for v in graph.inputs if v.name not in graph.initializers], [v.name for v in graph.outputs])
    for node in graph:
        if _tensor_of(node) is not None:
            continue
        names = [[None if v is None else v.name for v in values] for values in (node.inputs, node.outputs)]
        add("" if node.domain in _STANDARD else node.domain, node.op_type, names)
        for name, attribute in sorted(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR:
                add(name, _kind(attribute.as_tensor()), _digest(attribute.as_tensor()))
            elif attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                add(name)
                for inner in [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value:
                    _add_graph(inner, add)
            else:
                add(name, str(attribute.type), str(attribute.value))
