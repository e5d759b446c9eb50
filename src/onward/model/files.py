"""Save a model so that a crash, a full disk or an error leaves the old model or the new one, whole.

The model file is written by `storage.atomic`. A data file is written before it, under a name that no file has, so the
old model never refers to new data. The data file that only the replaced model used is removed last.
"""

from __future__ import annotations

import contextlib
import os
import re
from io import BufferedWriter
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic, ModelError
from onward.graph.walk import GraphLike, subgraphs
from onward.model import serde
from onward.model.training_model import TrainingModel
from onward.storage import atomic, writer
from onward.storage.external_data import Folder, all_tensors
from onward.storage.limits import DEFAULT, M102, tensor_nbytes

M111 = "M111"

_ALIGNMENT = 64  # of tensors in a data file, in bytes, so that the mapped data can be used directly
_INLINE_LIMIT = 1_800_000_000  # bytes of tensors: leaves space for the graphs in the 2 GB of a protobuf file


def save(model: TrainingModel | onnx.ModelProto, path: str, external_data: bool | str | None, threshold: int) -> None:
    """Write `model` to `path`; see `serde.save`."""
    if not isinstance(model, TrainingModel | onnx.ModelProto):
        raise ArgumentError(
            Diagnostic(
                A101,
                "this cannot be saved",
                found=f"an object of type `{type(model).__name__}`",
                needed="a TrainingModel or an onnx.ModelProto",
            )
        )
    if isinstance(external_data, str):
        refusal = Folder.why_not(external_data) or ("it is in another folder" if os.path.dirname(external_data) else "")
        if refusal or external_data == os.path.basename(path):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"the data file cannot be called `{external_data}`: {refusal or 'that is the model itself'}",
                    needed="the plain name of a file beside the model",
                )
            )
    if external_data is None:
        external_data = _data_size(model) > _INLINE_LIMIT
    try:
        target = atomic.target_of(path)
        if external_data is False:
            atomic.write_atomic(target, [serde.serialize(_inline_proto(model))])
        else:
            _save_external(model, target, external_data, threshold)
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(
            why_not_writable(path)
            or Diagnostic(M111, f"cannot write `{path}`: {reason}", hint="no half-written file was left")
        ) from error


def why_not_writable(path: str | os.PathLike[str]) -> Diagnostic | None:
    """Return why `save` cannot write to `path`, or None. A caller can ask before a long computation."""
    try:
        folder = atomic.target_of(os.fspath(path)).parent
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        return Diagnostic(M111, f"cannot write `{path}`: {getattr(error, 'strerror', None) or error}")
    if not os.path.isdir(folder):
        return Diagnostic(M111, f"cannot write `{path}`: there is no directory `{os.path.dirname(path) or folder}`")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Diagnostic(M111, f"cannot write `{path}`: no permission to write to `{folder}`")
    return None


class _DataFile:
    """A data file that is being written."""

    def __init__(self, file: BufferedWriter, threshold: int) -> None:
        self.file, self.path, self.threshold = file, Path(file.name), threshold
        self.size = 0

    def put(self, proto: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
        """Write a tensor of a model; the data of a large one goes to the data file."""
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes < self.threshold or not tensor.nbytes:
            writer.put_inline(proto, tensor)
            return
        writer.put_header(proto, tensor)
        atomic.boundary("write", self.path)
        offset = self._align()
        tensor.tofile(self.file) if hasattr(tensor, "tofile") else self.file.write(tensor.tobytes())
        self._refer(proto, offset, tensor.nbytes)

    def put_proto(self, proto: onnx.TensorProto, tensor: onnx.TensorProto) -> None:
        """Write a tensor of a message; the data of a large one goes to the data file."""
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                Diagnostic(
                    M111,
                    f"tensor `{tensor.name}` refers to external data that is not loaded",
                    hint="load the model with `onward.load(path)` and save that",
                )
            )
        if tensor.data_type in (onnx.TensorProto.STRING, 0) or tensor_nbytes(tensor) < max(self.threshold, 1):
            proto.CopyFrom(tensor)
            return
        self.put(proto, ir.serde.TensorProtoTensor(tensor))

    def _align(self) -> int:
        padding = -self.size % _ALIGNMENT
        self.file.write(b"\0" * padding)
        return self.size + padding

    def _refer(self, proto: onnx.TensorProto, offset: int, length: int) -> None:
        if self.file.tell() != offset + length:
            raise AssertionError(f"tensor `{proto.name}` wrote {self.file.tell() - offset} of {length} bytes")
        writer.external(proto, self.path.name, offset, length)
        self.size = offset + length


def _save_external(model: TrainingModel | onnx.ModelProto, target: Path, wanted: bool | str, threshold: int) -> None:
    wanted_name = wanted if isinstance(wanted, str) else f"{target.name}.data"
    replaced = _data_files_of(target)
    with _create_unused(target.with_name(wanted_name)) as file:
        data = _DataFile(file, threshold)
        try:
            if isinstance(model, TrainingModel):
                proto = serde._to_proto(model, data.put)
            else:
                proto = onnx.ModelProto()
                _copy(proto, model, data)
            atomic.sync(file, data.path)
            atomic.sync_directory(target.parent)  # before a model refers to it
            atomic.write_atomic(target, [serde.serialize(proto)])
        except BaseException:
            if data.path.name not in _data_files_of(target):  # else the last sync failed, after the rename
                data.path.unlink()
            raise
    if not data.size:
        atomic.remove(data.path)
    for old in replaced - {data.path.name}:
        if _is_ours(old, wanted_name):
            with contextlib.suppress(OSError):  # no model uses the file any more
                atomic.remove(target.with_name(old))


def _create_unused(wanted: Path) -> BufferedWriter:
    """Return a new file at `wanted`, or, if that exists, at `wanted` with a number."""
    stem, extension = os.path.splitext(wanted)
    count = 0
    while True:
        try:
            return atomic.create(Path(f"{stem}.{count}{extension}" if count else wanted))
        except FileExistsError:
            count += 1


def _is_ours(name: str, wanted: str) -> bool:
    """Return whether `_create_unused` can have given a data file its name."""
    stem, extension = os.path.splitext(wanted)
    return re.fullmatch(rf"{re.escape(stem)}(\.\d+)?{re.escape(extension)}", name) is not None


def _data_files_of(path: Path) -> set[str]:
    """Return the data files that the model at `path` names; an empty set if there is no readable model."""
    if not path.exists():
        return set()
    try:
        proto = serde.read_proto(path, external_data=False)
        tensors = [t for _, t in all_tensors(proto) if t.data_location == onnx.TensorProto.EXTERNAL]
        return {e.value for t in tensors for e in t.external_data if e.key == "location"}
    except ModelError:  # not a model: it is replaced, and other files are left alone
        return set()


def _inline_proto(model: TrainingModel | onnx.ModelProto) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    if _data_size(model) > DEFAULT.file_bytes:
        raise ModelError(
            Diagnostic(
                M102,
                "the model does not fit into one file",
                found=f"{_data_size(model):,} bytes of tensors",
                needed="at most 2 GB",
                hint="save it with `external_data=True`",
            )
        )
    return serde.to_proto(model)


def _data_size(model: TrainingModel | onnx.ModelProto) -> int:
    """Return approximately how many bytes the tensors have."""
    if isinstance(model, onnx.ModelProto):
        return int(model.ByteSize())
    graphs: list[GraphLike] = [model.graph, *model.ir.functions.values()]
    graphs += [g for e in model.entries for g in (e.algorithm, e.initialization) if g is not None]
    total = 0
    while graphs:
        graph = graphs.pop()
        if isinstance(graph, ir.Graph):
            total += sum(_size(v.const_value) for v in graph.initializers.values() if v.const_value is not None)
        for node in graph:
            graphs.extend(subgraphs(node))
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    total += _size(attribute.as_tensor())
    return total


def _size(tensor: ir.TensorProtocol) -> int:
    return sum(map(len, tensor.string_data())) if isinstance(tensor, ir.StringTensor) else int(tensor.nbytes)


# The fields on the way from a model to its tensors; all other fields are copied whole.
_CARRIERS: dict[type, tuple[str, ...]] = {
    onnx.ModelProto: ("graph", "functions", "training_info"),
    onnx.TrainingInfoProto: ("initialization", "algorithm"),
    onnx.GraphProto: ("node", "initializer", "sparse_initializer"),
    onnx.FunctionProto: ("node", "attribute_proto"),
    onnx.NodeProto: ("attribute",),
    onnx.AttributeProto: ("t", "tensors", "g", "graphs", "sparse_tensor", "sparse_tensors"),
    onnx.SparseTensorProto: ("values", "indices"),
}


def _copy(target: Any, source: Any, data: _DataFile) -> None:
    """Copy `source`, which is not changed, to `target`; the data of large tensors goes to the data file instead."""
    if isinstance(source, onnx.TensorProto):
        data.put_proto(target, source)
        return
    carriers = _CARRIERS[type(source)]
    for field, value in source.ListFields():
        if field.name in carriers and field.is_repeated:
            for item in value:
                _copy(getattr(target, field.name).add(), item, data)
        elif field.name in carriers:
            getattr(target, field.name).SetInParent()
            _copy(getattr(target, field.name), value, data)
        elif field.is_repeated:
            getattr(target, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
