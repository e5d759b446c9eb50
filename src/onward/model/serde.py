"""Load and save models, and convert between `TrainingModel` and `ModelProto`.

A round trip through `TrainingModel` normalises what has no meaning: the order of `value_info` and
`quantization_annotation`; empty strings that are set explicitly; the domain name `ai.onnx`, which becomes ``""``; an
attribute's missing type. It drops fields that the installed onnx package does not know.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]  # has no stubs

from onward.arguments import did_you_mean, nearest
from onward.errors import Diagnostic, ModelError
from onward.model.checkpointed import read_run
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.storage import writer
from onward.storage.checkpoints import is_run
from onward.storage.external_data import Folder, all_tensors
from onward.storage.limits import DEFAULT, M102, Limits, check_structure, check_tensor
from onward.storage.reader import M110, Reader, Scope, metadata
from onward.storage.writer import Put, Writer, put_inline

M100 = "M100"
M101 = "M101"
M109 = "M109"

Path = str | os.PathLike[str]
Source = Path | bytes | onnx.ModelProto | TrainingModel


def load(source: Source, *, base_dir: Path | None = None, limits: Limits = DEFAULT) -> TrainingModel:
    """Return the `TrainingModel` of a file, of bytes or of a `ModelProto`; an inference-only model has no entries.

    A directory of checkpoints is a model too: that of the run, with the state of its newest complete checkpoint.
    External data is mapped into memory, not read. It must be in the folder of the file, or in `base_dir` for bytes and
    messages.

    Raises:
        ModelError: the file is missing, is not a model, or is not safe to read; lists every problem found.
    """
    if isinstance(source, TrainingModel):
        return source
    if isinstance(source, onnx.ModelProto):
        return from_proto(source, base_dir=base_dir, limits=limits)
    proto, folder = _parse(source, base_dir, limits)
    return _from_proto(proto, folder, True, limits)


def read_proto(
    source: Source, *, base_dir: Path | None = None, external_data: bool = True, limits: Limits = DEFAULT
) -> onnx.ModelProto:
    """Return the `ModelProto` of `source`, with its external data (or, if not `external_data`, references to it).

    A message from a file or from bytes is within the limits, and its text is UTF-8. Nothing else is checked; that is
    the task of `check`. A `ModelProto` is returned as it is.

    Raises:
        ModelError: the file is missing, is not a model, or is not safe to read.
    """
    if isinstance(source, TrainingModel):
        return to_proto(source)
    if isinstance(source, onnx.ModelProto):
        return source
    proto, folder = _parse(source, base_dir, limits)
    _check_text(proto)
    problems = check_structure(proto, limits)
    if problems:
        raise ModelError(problems)
    if external_data:
        _inline(proto, folder, limits)
    return proto


def parse_proto(source: Path | bytes, *, limits: Limits = DEFAULT) -> tuple[onnx.ModelProto, str | None]:
    """Return the message of a file or of bytes exactly as it is, and the folder of its external data if it has one.

    Only the file's size is checked, and no external data is read. This is for `check`, which reports everything else as
    findings. To build something from a message, read it with `read_proto` or `load`.

    Raises:
        ModelError: the file is missing or is not a model.
    """
    return _parse(source, None, limits)


def from_proto(proto: onnx.ModelProto, *, base_dir: Path | None = None, limits: Limits = DEFAULT) -> TrainingModel:
    """Return the `TrainingModel` of `proto`, which is not changed; the data of its tensors is shared, not copied.

    Raises:
        ModelError: the message exceeds a limit or its meaning is not defined; lists every problem found.
    """
    return _from_proto(proto, None if base_dir is None else os.fspath(base_dir), False, limits)


def to_proto(model: TrainingModel, *, keep_references: bool = False) -> onnx.ModelProto:
    """Return `model` as a standard `ModelProto` that contains all data.

    With `keep_references`, tensors that were read from external data become references to it.
    """
    return _to_proto(model, writer.put_reference if keep_references else put_inline)


def save(
    model: TrainingModel | onnx.ModelProto,
    path: Path,
    *,
    external_data: bool | str | None = None,
    size_threshold: int = 1024,
) -> None:
    """Write the model to `path`. If that fails, the old file is unchanged.

    If `external_data` is True or a file name, tensors of at least `size_threshold` bytes go to a data file beside the
    model, including those of training graphs, functions and subgraphs. By default this is done only if the model does
    not fit into the 2 GB of a protobuf file.

    Raises:
        ModelError: the file cannot be written, or is too large without external data.
    """
    from onward.model import files

    files.save(model, os.fspath(path), external_data, size_threshold)


def _parse(source: Path | bytes, base_dir: Path | None, limits: Limits) -> tuple[onnx.ModelProto, str | None]:
    """Return the parsed message and the folder of its external data."""
    folder = None if base_dir is None else os.fspath(base_dir)
    place = _place(source)
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        if len(data) > limits.file_bytes:
            raise ModelError(_too_large(len(data), place, limits))
    elif isinstance(source, str | os.PathLike):
        data = _read(os.fspath(source), limits)
        folder = folder if folder is not None else os.path.dirname(os.path.abspath(os.fspath(source)))
    else:
        raise ModelError(
            Diagnostic(
                M100,
                "this is not a model",
                found=f"an object of type `{type(source).__name__}`",
                needed="a path, bytes, an onnx.ModelProto or a TrainingModel",
            )
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise ModelError(
            Diagnostic(
                M100,
                "this is not an ONNX model, or it is damaged",
                place,
                found=_looks_like(data),
                hint="if the file was downloaded, compare its size with the original",
            )
        ) from error
    if not data or (not proto.HasField("graph") and not proto.HasField("ir_version")):
        raise ModelError(Diagnostic(M100, "this is not an ONNX model", place, found=_looks_like(data)))
    return proto, folder


def _read(path: str, limits: Limits) -> bytes:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode) and is_run(path):
            data = read_run(path)
            if len(data) > limits.file_bytes:
                raise ModelError(_too_large(len(data), path, limits))
            return data
        if stat.S_ISDIR(status.st_mode):
            models = sorted(n for n in os.listdir(path) if n.endswith(".onnx"))[:3]
            raise ModelError(
                Diagnostic(
                    M101,
                    f"`{path}` is a directory, not a model file",
                    hint=f"it contains {', '.join(f'`{m}`' for m in models)}" if models else "",
                )
            )
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(Diagnostic(M101, f"`{path}` is not a regular file"))
        if status.st_size > limits.file_bytes:
            raise ModelError(_too_large(status.st_size, path, limits))
        with open(path, "rb") as file:
            return file.read(limits.file_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(Diagnostic(M101, f"cannot open `{path}`: {reason}", hint=_near_names(path, error))) from error


def _near_names(path: str, error: Exception) -> str:
    if not isinstance(error, FileNotFoundError):
        return ""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return f"there is no folder `{folder}`"
    near = nearest(name, names) or sorted(n for n in names if n.endswith(".onnx"))[:3]
    return did_you_mean(os.path.join(folder, n) for n in near)


def _looks_like(data: bytes) -> str:
    """Return what kind of file the bytes seem to be."""
    if not data:
        return "an empty file"
    known = {
        b"PK\x03\x04": "a ZIP archive (a PyTorch or Keras file?)", b"\x89HDF": "an HDF5 file (a Keras file?)",
        b"\x80\x02": "a Python pickle", b"\x80\x04": "a Python pickle", b"TFL3": "a TensorFlow Lite file",
        b"version https://git-lfs": "a Git LFS pointer; run `git lfs pull`", b"<": "HTML or XML", b"{": "JSON",
        b"\x1f\x8b": "a gzip archive; unpack it first",
    }  # fmt: skip
    for start, what in known.items():
        if data.startswith(start) or (start == b"TFL3" and data[4:8] == start):
            return what
    return f"{len(data):,} bytes that do not parse (damaged, truncated, or nested more than about 30 graphs deep)"


def _too_large(size: int, place: str, limits: Limits) -> Diagnostic:
    return Diagnostic(
        M102,
        "the file is too large",
        place,
        found=f"{size:,} bytes",
        needed=f"at most {limits.file_bytes:,}",
        hint="larger models keep their weights in external data",
    )


def _place(source: object) -> str:
    return str(os.fspath(source)) if isinstance(source, str | os.PathLike) else ""


def _not_text(data: bytes) -> ModelError:
    shown = data[:60].decode("utf-8", "backslashreplace")
    return ModelError(Diagnostic(M109, "a text of the model is not UTF-8", found=f"`{shown}`"))


def _from_proto(proto: onnx.ModelProto, folder: str | None, owned: bool, limits: Limits) -> TrainingModel:
    _check_text(proto)
    problems = check_structure(proto, limits)
    if problems:
        raise ModelError(problems)
    with Folder(folder) as data:
        return _build(proto, Reader(data, owned=owned, limits=limits))


def _build(proto: onnx.ModelProto, reader: Reader) -> TrainingModel:
    scopes: list[Scope] = []
    graph = reader.graph(proto.graph, scopes)
    functions = []
    seen: set[tuple[str, str, str]] = set()
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        if key in seen:
            reader.report(M110, f"function `{function.name}` is given twice", found=f"domain `{function.domain}`")
        seen.add(key)
        functions.append(reader.function(function))
    entries = []
    for index, info in enumerate(proto.training_info):
        place = f"training_info[{index}]"
        entry = TrainingEntry(
            update_binding=_binding(info.update_binding, f"{place}.update_binding", reader),
            initialization_binding=_binding(info.initialization_binding, f"{place}.initialization_binding", reader),
        )
        if info.HasField("algorithm"):
            entry.algorithm = reader.graph(info.algorithm, [*scopes], f"{place}.algorithm")
        if info.HasField("initialization"):
            entry.initialization = reader.graph(info.initialization, [], f"{place}.initialization")
        entries.append(entry)
    for opset in proto.opset_import:
        if graph.opset_imports.get(opset.domain, opset.version) != opset.version:  # skl2onnx imports one twice
            reader.report(M110, f"operator set `{opset.domain}` is imported twice, in different versions")
        graph.opset_imports[opset.domain] = opset.version
    if reader.problems:
        raise ModelError(reader.problems)
    model = ir.Model(
        graph,
        ir_version=proto.ir_version,
        producer_name=proto.producer_name or None,
        producer_version=proto.producer_version or None,
        domain=proto.domain or None,
        model_version=proto.model_version or None,
        doc_string=proto.doc_string or None,
        functions=functions,
        metadata_props=metadata(proto.metadata_props),
        device_configurations=tuple(ir.serde.deserialize_model_configuration(c) for c in proto.configuration),
    )
    return TrainingModel(model, entries)


def _binding(entries: Iterable[onnx.StringStringEntryProto], place: str, reader: Reader) -> dict[str, str]:
    binding: dict[str, str] = {}
    for entry in entries:
        if entry.key in binding:
            reader.problems.append(Diagnostic(M110, f"`{entry.key}` is bound twice", place))
        binding[entry.key] = entry.value
    return binding


def _to_proto(model: TrainingModel, put: Put) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    out = Writer(put, ir_version=model.ir.ir_version)
    out.model(proto, model.ir)
    for entry in model.entries:
        info = proto.training_info.add()
        if entry.algorithm is not None:
            info.algorithm.SetInParent()
            out.graph(info.algorithm, entry.algorithm)
        if entry.initialization is not None:
            info.initialization.SetInParent()
            out.graph(info.initialization, entry.initialization)
        writer.metadata(info.update_binding, entry.update_binding)
        writer.metadata(info.initialization_binding, entry.initialization_binding)
    return proto


def _inline(proto: onnx.ModelProto, folder: str | None, limits: Limits) -> None:
    """Load the external data of every tensor into the message."""
    problems: list[Diagnostic] = []
    total = 0
    with Folder(folder) as data:
        for place, tensor in all_tensors(proto):
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            found = list(check_tensor(tensor, place, limits))
            problems += found
            if found:
                continue
            try:
                _, array = data.read(tensor, place)
            except ModelError as error:
                problems += error.diagnostics
                continue
            total += array.nbytes
            if total > limits.file_bytes:
                raise ModelError(
                    Diagnostic(
                        M102,
                        "the model with its external data does not fit into one message",
                        needed=f"at most {limits.file_bytes:,} bytes",
                        hint="use `onward.load`, which maps the data, or `external_data=False`",
                    )
                )
            tensor.raw_data = array.tobytes()
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    if problems:
        raise ModelError(problems)


def _check_text(root: Any) -> None:
    """Raise if a text is not UTF-8. Protobuf does not check it: reading such a text gives bytes or an error."""
    stack = [root]
    kinds: dict[Any, int] = {}  # 1: text, 2: repeated text, 3: a message, 4: repeated messages, 0: other
    try:
        while stack:
            message = stack.pop()
            if type(message) is onnx.TensorProto:  # listing its fields would copy its data
                fields: list[Any] = [message.name, message.doc_string]
                if not all(type(text) is str for text in fields):
                    raise _not_text(next(text for text in fields if type(text) is not str))
                stack.extend(message.external_data)
                stack.extend(message.metadata_props)
                continue
            for field, content in message.ListFields():
                kind = kinds.get(field)
                if kind is None:
                    kind = {field.TYPE_STRING: 1, field.TYPE_MESSAGE: 3}.get(field.type, 0)
                    kind = kinds[field] = kind + bool(kind and field.is_repeated)
                if kind == 1:
                    if type(content) is not str:
                        raise _not_text(content)
                elif kind == 2:
                    for text in content:
                        if type(text) is not str:
                            raise _not_text(text)
                elif kind == 3:
                    stack.append(content)
                elif kind == 4:
                    stack.extend(content)
    except UnicodeDecodeError as error:
        raise _not_text(error.object) from error


def serialize(proto: onnx.ModelProto) -> bytes:
    """Return the bytes of a message.

    Raises:
        ModelError: the message is larger than a protobuf file can be.
    """
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        raise ModelError(
            Diagnostic(
                M102,
                "the model does not fit into one file",
                needed="at most 2 GB",
                hint="save it with `external_data=True`",
            )
        ) from error
