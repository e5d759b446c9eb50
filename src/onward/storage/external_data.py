"""Read weights from files beside the model: only from the model's own folder, and only the bytes of the tensor.

A location is a plain relative path. It is opened component by component without following links. The check that it is a
regular file with one name is made on the open file, so swapping the file between check and use has no effect. The data
is mapped, not read: it costs memory only where it is used.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import Diagnostic, ModelError, named_nodes
from onward.storage.limits import tensor_nbytes

M107 = "M107"
M108 = "M108"

_KEYS = ("location", "offset", "length")


class _Refused(Exception):
    """A location that will not be opened; the text says why."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """The place of a tensor's data, as its `external_data` entries give it."""

    location: str
    offset: int
    length: int | None
    extra: tuple[tuple[str, str], ...] = ()  # other keys of the file, such as `checksum`, kept as they are


class ExternalTensor(ir.Tensor[np.ndarray[Any, Any]]):
    """A tensor over mapped external data, with the place of that data."""

    __slots__ = ("reference",)
    reference: Reference


class PackedExternalTensor(ir.PackedTensor[np.ndarray[Any, Any]]):
    """A tensor over mapped external data whose elements are smaller than one byte."""

    __slots__ = ("reference",)
    reference: Reference


class Folder:
    """The folder of a model's external data, as a context manager. Each data file is opened once.

    >>> Folder(None).why_not("../secret")
    'it leaves the folder through `..`'
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._maps: dict[str, tuple[int, Any]] = {}

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maps.clear()  # the mappings live on in the tensors over them

    @staticmethod
    def why_not(location: str) -> str:
        """Return why a location is refused before it is opened, or an empty string."""
        if not location:
            return "it is empty"
        if "_ORT_MEM_ADDR_" in location:
            return "it is a memory address of another process, not a file"
        if "\0" in location:
            return "it contains a zero byte"
        if location.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", location):
            return "it is an absolute path"
        if ".." in re.split(r"[/\\]", location):
            return "it leaves the folder through `..`"
        if "\\" in location:
            return "it contains a backslash; paths in ONNX files use `/`"
        return ""

    def read(self, proto: onnx.TensorProto, place: str) -> tuple[Reference, np.ndarray[Any, Any]]:
        """Return the reference and the mapped bytes of an external tensor that has passed `check_tensor`.

        Raises:
            ModelError: the location is not safe, or the file does not hold the tensor.
        """
        reference = parse(proto, place)
        refusal = self.why_not(reference.location)
        if not refusal and self.path is None:
            raise ModelError(
                Diagnostic(
                    M108,
                    f"tensor `{proto.name}` is in external data, but the model has no folder",
                    place,
                    found=f"location `{_short(reference.location)}`",
                    hint="load the model from its path, or pass `base_dir`",
                )
            )
        size, data = 0, b""
        if not refusal:
            try:
                size, data = self._open(os.path.normpath(reference.location))
            except _Refused as reason:
                refusal = str(reason)
            except OSError as error:
                raise ModelError(
                    Diagnostic(
                        M108,
                        f"the external data of tensor `{proto.name}` cannot be opened",
                        place,
                        found=f"location `{_short(reference.location)}`: {error.strerror or error}",
                        hint="the data file belongs beside the model; copy both",
                    )
                ) from error
        if refusal:
            raise ModelError(
                Diagnostic(
                    M107,
                    f"the external data of tensor `{proto.name}` is not safe to read: {refusal}",
                    place,
                    found=f"location `{_short(reference.location)}`",
                    needed="a plain file below the model's folder",
                )
            )
        needed = tensor_nbytes(proto)
        length = needed if reference.length is None else reference.length
        if length != needed or reference.offset + needed > size:
            raise ModelError(
                Diagnostic(
                    M108,
                    f"the external data of tensor `{proto.name}` does not fit its shape",
                    place,
                    found=f"offset {reference.offset}, length {length} in a file of {size:,} bytes",
                    needed=f"{needed:,} bytes for {ir.DataType(proto.data_type).name} {list(proto.dims)}",
                )
            )
        if not needed:
            return reference, np.empty(0, np.uint8)
        return reference, np.frombuffer(data, np.uint8, count=needed, offset=reference.offset)

    def tensor(self, proto: onnx.TensorProto, place: str) -> ExternalTensor | PackedExternalTensor:
        """Return the tensor over its mapped data."""
        reference, data = self.read(proto, place)
        dtype, shape = ir.DataType(proto.data_type), ir.Shape(list(proto.dims))
        about: dict[str, Any] = {
            "name": proto.name,
            "doc_string": proto.doc_string or None,
            "metadata_props": {e.key: e.value for e in proto.metadata_props} or None,
        }
        tensor: ExternalTensor | PackedExternalTensor
        if dtype.bitwidth < 8:
            tensor = PackedExternalTensor(data, dtype, shape=shape, **about)
        else:
            array = data.view(dtype.numpy().newbyteorder("<")).reshape(list(proto.dims))
            if not array.flags.aligned:  # an odd offset: runtimes want aligned data
                array = array.copy()
            tensor = ExternalTensor(array, dtype, shape=shape, **about)
        tensor.reference = reference
        return tensor

    def _open(self, location: str) -> tuple[int, Any]:
        """Return the size and the mapping of a data file, which is opened at the first call."""
        if location not in self._maps:
            assert self.path is not None
            descriptor = _open_beneath(self.path, location)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise _Refused("it is not a regular file")
                if status.st_nlink != 1:
                    raise _Refused("it is a hard link, which may be another file of yours under a second name")
                data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if status.st_size else b""
            finally:
                os.close(descriptor)
            self._maps[location] = status.st_size, data
        return self._maps[location]


def _open_beneath(folder: str, location: str) -> int:
    """Return a descriptor of `folder`/`location`, no component of which is a link."""
    binary: int = getattr(os, "O_BINARY", 0)
    nonblock: int = getattr(os, "O_NONBLOCK", 0)  # a FIFO would block until somebody writes
    parts = location.split(os.sep)
    if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):  # Windows
        for count in range(1, len(parts) + 1):
            if os.path.islink(os.path.join(folder, *parts[:count])):
                raise _Refused("it goes through a symbolic link")
        return os.open(os.path.join(folder, *parts), os.O_RDONLY | binary)
    current = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if stat.S_ISLNK(os.stat(part, dir_fd=current, follow_symlinks=False).st_mode):
                raise _Refused("it goes through a symbolic link")
            flags = os.O_RDONLY | os.O_NOFOLLOW | nonblock | (0 if last else os.O_DIRECTORY)
            inner = os.open(part, flags, dir_fd=current)  # O_NOFOLLOW: a link that appeared after the check is refused
            os.close(current)
            current = inner
    except BaseException:
        os.close(current)
        raise
    return current


def parse(proto: onnx.TensorProto, place: str) -> Reference:
    """Return the reference that the tensor's `external_data` entries make up.

    Raises:
        ModelError: a key is missing or given twice, or an offset or length is not a number.
    """
    entries: dict[str, str] = {}
    for entry in proto.external_data:
        if entry.key in entries:
            raise _bad(proto, place, f"key `{_short(entry.key)}` is given twice")
        entries[entry.key] = entry.value
    if "location" not in entries:
        raise _bad(proto, place, "no `location`")
    if proto.HasField("raw_data"):
        raise _bad(proto, place, "`raw_data` beside an external location")
    numbers: dict[str, int] = {}
    for key in ("offset", "length"):
        text = entries.get(key)
        if text is not None:
            if not re.fullmatch(r"[0-9]{1,19}", text):
                raise _bad(proto, place, f"{key} `{_short(text)}`, which is not a number of bytes")
            numbers[key] = int(text)
    extra = tuple((k, v) for k, v in entries.items() if k not in _KEYS)
    return Reference(entries["location"], numbers.get("offset", 0), numbers.get("length"), extra)


def _bad(proto: onnx.TensorProto, place: str, found: str) -> ModelError:
    return ModelError(
        Diagnostic(
            M108,
            f"the external data of tensor `{proto.name}` is described wrongly",
            place,
            found=found,
            needed="`location`, and `offset` and `length` as numbers of bytes",
        )
    )


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


def all_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the place and the message of every tensor: initializers, attributes and parts of sparse tensors."""
    roots: list[tuple[str, Any]] = [("graph", proto.graph)]
    for index, info in enumerate(proto.training_info):
        for field in ("algorithm", "initialization"):
            if info.HasField(field):
                roots.append((f"training_info[{index}].{field}", getattr(info, field)))
    for function in proto.functions:
        place = f"function `{function.name}`"
        roots.append((place, function))
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute, f"{place}, attribute `{attribute.name}`", roots)
    while roots:
        place, graph = roots.pop()
        if isinstance(graph, onnx.GraphProto):
            for tensor in graph.initializer:
                yield f"{place}, initializer `{tensor.name}`", tensor
            for sparse in graph.sparse_initializer:
                yield f"{place}, sparse initializer `{sparse.values.name}`", sparse.values
                yield f"{place}, sparse initializer `{sparse.values.name}`, indices", sparse.indices
        for node, name in zip(graph.node, named_nodes(graph.node), strict=True):
            for attribute in node.attribute:
                where = f"{place}, {name}, attribute `{attribute.name}`"
                yield from _attribute_tensors(attribute, where, roots)


def _attribute_tensors(
    attribute: onnx.AttributeProto, place: str, roots: list[tuple[str, Any]]
) -> Iterator[tuple[str, onnx.TensorProto]]:
    if attribute.HasField("t"):
        yield place, attribute.t
    for tensor in attribute.tensors:
        yield place, tensor
    sparse_tensors = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for sparse in [*sparse_tensors, *attribute.sparse_tensors]:
        yield place, sparse.values
        yield place, sparse.indices
    if attribute.HasField("g"):
        roots.append((place, attribute.g))
    roots.extend((place, g) for g in attribute.graphs)
