"""Between protobuf and `TrainingModel`: the only user of protobuf messages.

onnx-ir reads and writes everything but `training_info` and sparse initializers; those parts are ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onward.errors import Diagnostic, ModelError, define
from onward.model.training_model import TrainingEntry, TrainingModel

M100 = define(
    "M100",
    "not an ONNX model",
    why="The bytes are not an ONNX ModelProto, or are damaged.",
    fix="Export the model again, or restore the file from a good copy.",
)

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | TrainingModel

_SPARSE = "onward.sparse_initializer"
_LINK = "onward.link"


def load(source: Source) -> TrainingModel:
    """Return the `TrainingModel` of a file, of bytes or of a `ModelProto`; an inference-only model has no entries.

    Raises:
        ModelError: the file is missing, is not a model, or is not safe to read.
    """
    if isinstance(source, TrainingModel):
        return source
    return from_proto(read_proto(source))


def read_proto(source: Source) -> onnx.ModelProto:
    """Return the `ModelProto` of `source`, external data loaded."""
    if isinstance(source, TrainingModel):
        return to_proto(source)
    if isinstance(source, onnx.ModelProto):
        return source
    try:
        if isinstance(source, bytes):
            return onnx.load_from_string(source)
        return onnx.load(os.fspath(source))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(Diagnostic(M100, f"cannot read the model: {error}", place=str(source)[:200])) from error
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        raise ModelError(Diagnostic(M100, f"cannot read the model: {error}", place=str(source)[:200])) from error


def from_proto(proto: onnx.ModelProto) -> TrainingModel:
    """Return the `TrainingModel` of `proto`; `proto` is left as it was.

    Each algorithm is read as a subgraph of the inference graph, so that what it references is the very value there.
    """
    first_link = len(proto.graph.node)
    for info in proto.training_info:
        if info.HasField("algorithm"):
            link = proto.graph.node.add(op_type=_LINK, domain=_LINK)
            attribute = link.attribute.add(name="algorithm", type=onnx.AttributeProto.GRAPH)
            attribute.g.CopyFrom(info.algorithm)
    try:
        model = ir.serde.deserialize_model(proto)
    finally:
        del proto.graph.node[first_link:]
    links = [n for n in model.graph if n.op_type == _LINK and n.domain == _LINK]
    algorithms = [n.attributes["algorithm"].as_graph() for n in links]
    model.graph.remove(links)
    _read_sparse(model.graph, proto.graph)
    entries = []
    remaining = iter(algorithms)
    for info in proto.training_info:
        entry = TrainingEntry(
            update_binding={b.key: b.value for b in info.update_binding},
            initialization_binding={b.key: b.value for b in info.initialization_binding},
        )
        if info.HasField("algorithm"):
            entry.algorithm = next(remaining)
            _read_sparse(entry.algorithm, info.algorithm)
        if info.HasField("initialization"):
            entry.initialization = ir.serde.deserialize_graph(info.initialization)
            _read_sparse(entry.initialization, info.initialization)
        entries.append(entry)
    return TrainingModel(model, entries)


def to_proto(model: TrainingModel) -> onnx.ModelProto:
    """Return `model` as a standard `ModelProto`."""
    proto = ir.serde.serialize_model(model.ir)
    _write_sparse(model.graph, proto.graph)
    for entry in model.entries:
        info = proto.training_info.add()
        if entry.algorithm is not None:
            ir.serde.serialize_graph_into(info.algorithm, entry.algorithm)
            _write_sparse(entry.algorithm, info.algorithm)
        if entry.initialization is not None:
            ir.serde.serialize_graph_into(info.initialization, entry.initialization)
            _write_sparse(entry.initialization, info.initialization)
        _write_binding(info.update_binding, entry.update_binding.items())
        _write_binding(info.initialization_binding, entry.initialization_binding.items())
    return proto


def save(model: TrainingModel | onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write the model to `path`."""
    proto = model if isinstance(model, onnx.ModelProto) else to_proto(model)
    onnx.save(proto, os.fspath(path))


def _read_sparse(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    if proto.sparse_initializer:
        graph.meta[_SPARSE] = [t.SerializeToString() for t in proto.sparse_initializer]


def _write_sparse(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    for data in graph.meta.get(_SPARSE, ()):
        proto.sparse_initializer.add().ParseFromString(data)


def _write_binding(field: object, pairs: Iterable[tuple[str, str]]) -> None:
    for key, value in pairs:
        field.add(key=key, value=value)  # type: ignore[attr-defined]  # a protobuf repeated field
