"""ONNX models as MLIR text, and back: the dialect of onnx-mlir, without loss, and the form that IREE reads.

>>> import onward
>>> text = onward.mlir.to_text(onward.samples.build("linear"))
>>> print(text.splitlines()[4])  # doctest: +ELLIPSIS
    %Y = "onnx.MatMul"(%X, %W) {onnx_node_name = "forward", ...} : (tensor<?x1xf32>, tensor<1x1xf32>) -> tensor<?x1xf32>
>>> onward.mlir.from_text(text) == onward.samples.build("linear").proto()
True
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path as _Path

import numpy as np
import onnx
import onnx.inliner

from onward.arguments import check_name
from onward.errors import A101, ArgumentError, Diagnostic, ModelError
from onward.mlir import torch_onnx
from onward.mlir.exporting import export_module
from onward.mlir.graphs import choose, default_graph
from onward.mlir.importing import import_module
from onward.mlir.parser import parse
from onward.mlir.printer import module_chunks
from onward.mlir.scanner import DEFAULT, M130, Limits
from onward.mlir.syntax import Module, String, text
from onward.mlir.weights import EXTERNAL, INLINE, PLACES, RESOURCE, Weights
from onward.model import serde
from onward.model.files import M111, why_not_writable
from onward.model.serde import M101
from onward.storage import atomic
from onward.storage.external_data import M107, M108, Folder
from onward.storage.limits import M102, check_structure
from onward.storage.tensor_file import Damaged, read_tensor_file, tensor_file_chunks

ONNX, TORCH_ONNX = "onnx", "torch-onnx"
DIALECTS = (ONNX, TORCH_ONNX)
_EXTERNAL = "onward.external"


def to_text(
    model: serde.Source,
    *,
    dialect: str = ONNX,
    graph: str | None = None,
    level: str = "any",
    weights: str | None = None,
    entry: str | None = None,
) -> str:
    """Return a model as MLIR text.

    `dialect` is `onnx` (onnx-mlir's generic form; `from_text` gives the model back, bit by bit) or `torch-onnx` (for
    IREE and torch-mlir). `graph` is `model`, the file with its training entries, functions and `Gradient` nodes;
    `inference`; or a compiled graph of plain operators: `step`, `evaluate` (of the training entry `entry`),
    `initialize`. By default it is `model`, and for `torch-onnx`, which has no training entries, `inference`.
    `level="core"` lowers to the core operators. `weights` is `inline`, or `resource`: large constants at the end of
    the text (the default of `torch-onnx`).

    Raises:
        ArgumentError: there is no such dialect, graph, level, place or entry.
        ModelError: the model cannot be read, compiled or written as MLIR; lists every problem.
    """
    module, _ = _module(model, dialect, graph, level, _place(dialect, weights, external=False), entry)
    return "".join(module_chunks(module))


def from_text(source: str, *, function: str | None = None, limits: Limits = DEFAULT) -> onnx.ModelProto:
    """Return the model of an MLIR text: of `to_text`, of onnx-mlir, or of IREE's importer.

    `function` names the one to read where the text has several and no `onnx.EntryPoint`.

    Raises:
        ModelError: the text is not MLIR, is not an ONNX model, or is not safe to read.
    """
    try:
        data = source.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ModelError(
            Diagnostic(M130, "the text has half of a character", found=f"{source[error.start]!a}")
        ) from error
    return _read(data.decode("latin-1"), function, None, limits)


def save(
    model: serde.Source,
    path: serde.Path,
    *,
    dialect: str = ONNX,
    graph: str | None = None,
    level: str = "any",
    weights: str | None = None,
    entry: str | None = None,
) -> None:
    """Write a model as an MLIR file; see `to_text`. If that fails, the old file is unchanged.

    With `weights="external"`, large constants go to a safetensors file beside it, of the same name.

    Raises:
        ArgumentError, ModelError: as for `to_text`, or the file cannot be written.
    """
    refusal = why_not_writable(path)
    if refusal is not None:
        raise ModelError(refusal)
    module, placed = _module(model, dialect, graph, level, _place(dialect, weights, external=True), entry)
    target = _Path(os.fspath(path))
    try:
        if placed.external:
            data = target.with_suffix(".safetensors")
            module.attributes[_EXTERNAL] = text(data.name)
            atomic.write_atomic(data, tensor_file_chunks(placed.external, {"format": "onward-mlir"}))
        atomic.write_atomic(target, _encoded(module))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(Diagnostic(M111, f"cannot write `{target}`: {reason}")) from error


def load(path: serde.Path, *, function: str | None = None, limits: Limits = DEFAULT) -> onnx.ModelProto:
    """Return the model of an MLIR file; see `from_text`.

    Raises:
        ModelError: the file cannot be opened, is not MLIR, is not an ONNX model, or is not safe to read.
    """
    name = os.fspath(path)
    try:
        status = os.stat(name)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(Diagnostic(M101, f"`{name}` is not a regular file"))
        if status.st_size > limits.file_bytes:
            raise ModelError(
                Diagnostic(
                    M102,
                    "the file is too large",
                    name,
                    found=f"{status.st_size:,} bytes",
                    needed=f"at most {limits.file_bytes:,}",
                )
            )
        data = _Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(Diagnostic(M101, f"cannot open `{name}`: {reason}")) from error
    if data.startswith(b"ML\xefR") or b"\0" in data[:4096]:
        raise ModelError(
            Diagnostic(
                M130,
                "this is not MLIR text",
                name,
                found="MLIR bytecode" if data.startswith(b"ML\xefR") else "binary data (an ONNX model?)",
                needed="text that begins with `module`",
            )
        )
    return _read(data.decode("latin-1"), function, os.path.dirname(os.path.abspath(name)), limits)


def _place(dialect: str, weights: str | None, *, external: bool) -> str:
    check_name("dialect", dialect, DIALECTS)
    weights = weights or (INLINE if dialect == ONNX else RESOURCE)
    check_name("place of the weights", weights, PLACES)
    if weights == EXTERNAL and (dialect != ONNX or not external):
        raise ArgumentError(
            Diagnostic(
                A101,
                "only a file of the dialect `onnx` can have its weights in another file",
                found='weights="external"',
                needed='weights="inline" or weights="resource"',
            )
        )
    return weights


def _module(
    model: serde.Source, dialect: str, graph: str | None, level: str, place: str, entry: str | None
) -> tuple[Module, Weights]:
    chosen = choose(model, graph or default_graph(dialect), level, entry)
    proto, weights = chosen.proto, Weights(place)
    if dialect == ONNX:
        return export_module(proto, weights, chosen.roles, chosen.replaces), weights
    if proto.training_info:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the form `{TORCH_ONNX}` has no training entries",
                found='graph="model"',
                needed='graph="inference", graph="step", graph="evaluate" or graph="initialize"',
            )
        )
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    return torch_onnx.to_torch(export_module(proto, weights), proto), weights


def _encoded(module: Module) -> Iterator[bytes]:
    """Yield the bytes of a module, a few thousand operations at a time."""
    parts: list[str] = []
    size = 0
    for chunk in module_chunks(module):
        parts.append(chunk)
        size += len(chunk)
        if size > atomic.CHUNK:
            yield "".join(parts).encode("utf-8", "surrogateescape")
            parts, size = [], 0
    yield "".join(parts).encode("utf-8", "surrogateescape")


def _read(source: str, function: str | None, folder: str | None, limits: Limits) -> onnx.ModelProto:
    module = parse(source, limits)
    blobs: dict[str, bytes | memoryview] = dict(module.resources)
    where = module.attributes.get(_EXTERNAL)
    if isinstance(where, String):
        blobs.update(_external_data(where.text, folder))
    if torch_onnx.is_torch(module):
        module = torch_onnx.from_torch(module)
    proto = import_module(module, blobs, function, limits)
    problems = check_structure(proto)
    if problems:
        raise ModelError(problems)
    return proto


def _external_data(name: str, folder: str | None) -> Mapping[str, memoryview]:
    """Return the tensors of the safetensors file beside a text."""
    refusal = Folder.why_not(name) or ("it is in another folder" if os.path.basename(name) != name else "")
    if refusal:
        raise ModelError(Diagnostic(M107, f"the data file is not safe to read: {refusal}", found=f"`{name[:60]}`"))
    if folder is None:
        raise ModelError(
            Diagnostic(M108, "the text keeps its weights in another file", hint="read it with onward.mlir.load(path)")
        )
    path = _Path(folder) / name
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ModelError(Diagnostic(M107, "the data file is a link, or no file", found=f"`{name}`"))
        arrays, _ = read_tensor_file(path)
    except (OSError, Damaged) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(Diagnostic(M108, f"the data file `{name}` cannot be read: {reason}")) from error
    return {key: np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for key, array in arrays.items()}
