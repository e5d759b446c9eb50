"""Checks for unsafe files: deep nesting, invalid UTF-8, malformed tensors, and external data outside the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]  # ships no types
from onnx import TensorProto

from onward.check.report import Findings, listing, quote
from onward.check.views import Model, View

C117 = "C117"
C501 = "C501"
C502 = "C502"
C503 = "C503"
C506 = "C506"
C507 = "C507"
C509 = "C509"

MAX_NESTING = 32
_MAX_MESSAGE_DEPTH = 4 * MAX_NESTING
_PLACES_TO_LIST = 5

_TENSOR_TEXT = [
    TensorProto.DESCRIPTOR.fields_by_name[name]
    for name in ("name", "doc_string", "external_data", "metadata_props")
    if name in TensorProto.DESCRIPTOR.fields_by_name
]
_STRING = 9  # google.protobuf.descriptor.FieldDescriptor.TYPE_STRING
_MESSAGE = 11  # TYPE_MESSAGE


def check_readable(proto: onnx.ModelProto, findings: Findings) -> bool:
    """Return whether all text is UTF-8 and no nesting exceeds the limit; otherwise nothing else can be checked.

    Walks the messages with an explicit stack, so that no file can exhaust Python's.
    """
    bad_text: list[str] = []
    deep: list[str] = []
    # Each item: message, path (as a linked list), depth, graph depth.
    stack: list[tuple[Any, Any, int, int]] = [(proto, None, 0, 0)]
    while stack:
        message, path, depth, graphs = stack.pop()
        if message.DESCRIPTOR.name == "GraphProto":
            graphs += 1
        if graphs > MAX_NESTING or depth > _MAX_MESSAGE_DEPTH:
            deep.append(_path_text(path))
            continue
        for field, value in _fields(message):
            kind = field.type
            if kind == _STRING:
                for text in (value,) if isinstance(value, str | bytes) else value:
                    if isinstance(text, bytes):
                        bad_text.append(f"{_path_text((path, field.name, None))}: {text[:40]!r}")
            elif kind == _MESSAGE:
                name = field.name
                if isinstance(value, Message):
                    stack.append((value, (path, name, None), depth + 1, graphs))
                else:
                    stack += [(m, (path, name, i), depth + 1, graphs) for i, m in enumerate(value)]
    for place in sorted(bad_text):
        where, _, text = place.partition(": ")
        findings.error(
            C509,
            f"{where.rpartition('.')[2]} is not UTF-8 text",
            place=where,
            found=text,
            needed="UTF-8; nothing else of this model was checked",
        )
    if deep:
        findings.error(
            C507,
            f"graphs or types are nested more than {MAX_NESTING} deep",
            place=sorted(deep)[0],
            found=f"{len(deep)} of them",
            needed=f"at most {MAX_NESTING} levels; nothing else of this model was checked",
        )
    return not bad_text and not deep


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _fields(message: Any) -> list[tuple[Any, Any]]:
    try:
        if message.DESCRIPTOR.name == "TensorProto":  # not its data, which would be copied
            return [(f, getattr(message, f.name)) for f in _TENSOR_TEXT]
        return list(message.ListFields())
    except UnicodeDecodeError:  # the pure Python protobuf decodes on access, upb returns the bytes
        fields = []
        for field in message.DESCRIPTOR.fields:
            try:
                value = getattr(message, field.name)
            except UnicodeDecodeError as error:
                value = [error.object] if _repeated(field) else error.object
            fields.append((field, value))
        return fields


def _path_text(path: Any) -> str:
    parts: list[str] = []
    while path is not None:
        path, name, index = path
        parts.append(name if index is None else f"{name}[{index}]")
    return ".".join(reversed(parts)) or "model"


# Element types: bits per element, the field that may hold the data instead of raw_data, entries of it per element.
_STORAGE: dict[int, tuple[int, str, int]] = {
    TensorProto.FLOAT: (32, "float_data", 1),
    TensorProto.UINT8: (8, "int32_data", 1),
    TensorProto.INT8: (8, "int32_data", 1),
    TensorProto.UINT16: (16, "int32_data", 1),
    TensorProto.INT16: (16, "int32_data", 1),
    TensorProto.INT32: (32, "int32_data", 1),
    TensorProto.INT64: (64, "int64_data", 1),
    TensorProto.STRING: (0, "string_data", 1),
    TensorProto.BOOL: (8, "int32_data", 1),
    TensorProto.FLOAT16: (16, "int32_data", 1),
    TensorProto.DOUBLE: (64, "double_data", 1),
    TensorProto.UINT32: (32, "uint64_data", 1),
    TensorProto.UINT64: (64, "uint64_data", 1),
    TensorProto.COMPLEX64: (64, "float_data", 2),
    TensorProto.COMPLEX128: (128, "double_data", 2),
    TensorProto.BFLOAT16: (16, "int32_data", 1),
}
for _name, _bits in (
    ("FLOAT8E4M3FN", 8), ("FLOAT8E4M3FNUZ", 8), ("FLOAT8E5M2", 8), ("FLOAT8E5M2FNUZ", 8), ("FLOAT8E8M0", 8),
    ("UINT4", 4), ("INT4", 4), ("FLOAT4E2M1", 4), ("UINT2", 2), ("INT2", 2),
):  # fmt: skip
    if hasattr(TensorProto, _name):  # each onnx release adds some
        _STORAGE[getattr(TensorProto, _name)] = (_bits, "int32_data", 1)
_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def is_data_type(elem_type: int) -> bool:
    """Return whether a number is an element type of ONNX."""
    return elem_type in _STORAGE


def type_text(elem_type: int) -> str:
    """Return the name of an element type, e.g. `FLOAT`."""
    return str(TensorProto.DataType.Name(elem_type)) if elem_type in TensorProto.DataType.values() else str(elem_type)


def element_count(dims: Any) -> int | None:
    """Return the number of elements, or None if a dim is negative or the product exceeds 63 bits."""
    count = bounded = 1
    for dim in dims:
        if dim < 0:
            return None
        count *= dim
        bounded *= dim or 1  # 2^40 × 2^40 × 0 is zero elements to Python and overflow to C++
        if bounded >= 2**63:
            return None
    return count


def check_tensors(model: Model, findings: Findings) -> None:
    """Report every stored tensor with malformed data or data outside the model's folder (rule 17)."""
    for view in model.views():
        if not view.is_function:
            for index, tensor in enumerate(view.proto.initializer):
                check_tensor(tensor, f"{view.place}, initializer {index} {quote(tensor.name)}", model, findings)
            for index, sparse in enumerate(view.proto.sparse_initializer):
                label = f"{view.place}, sparse_initializer {index} {quote(sparse.values.name)}"
                _check_sparse(sparse, label, model, findings)
        for position, attribute in _attributes(view):
            before = len(findings.found)
            for kind, tensor in _attribute_tensors(attribute):
                place = view.place if position is None else view.node_place(position)
                label = f"{place}, attribute {quote(attribute.name)}"
                if kind == "dense":
                    check_tensor(tensor, label, model, findings)
                else:
                    _check_sparse(tensor, label, model, findings)
            if position is not None and len(findings.found) > before:
                model.mark_broken(view, position)


def _attributes(view: View) -> Iterator[tuple[int | None, Any]]:
    for position, node in enumerate(view.nodes):
        for attribute in node.attribute:
            yield position, attribute
    if view.is_function:
        for attribute in view.proto.attribute_proto:
            yield None, attribute


def _attribute_tensors(attribute: Any) -> Iterator[tuple[str, Any]]:
    kind = attribute.type
    if attribute.ref_attr_name:
        return
    if kind == onnx.AttributeProto.TENSOR:
        yield "dense", attribute.t
    elif kind == onnx.AttributeProto.TENSORS:
        for tensor in attribute.tensors:
            yield "dense", tensor
    elif kind == onnx.AttributeProto.SPARSE_TENSOR:
        yield "sparse", attribute.sparse_tensor
    elif kind == onnx.AttributeProto.SPARSE_TENSORS:
        for tensor in attribute.sparse_tensors:
            yield "sparse", tensor


def check_tensor(tensor: Any, place: str, model: Model, findings: Findings) -> None:
    """Report what is wrong with one stored tensor."""
    kind = tensor.data_type
    if kind not in _STORAGE:
        findings.error(
            C117,
            f"the tensor has an element type that ONNX does not define: {kind}",
            place=place,
            found=f"data_type = {kind}",
            needed="one of " + ", ".join(type_text(k) for k in _STORAGE),
        )
        return
    count = element_count(tensor.dims)
    if count is None:
        dims = list(tensor.dims)
        findings.error(
            C506,
            f"no tensor has the dims {dims[:8]}",
            place=place,
            found="a negative dim" if min(dims) < 0 else "a product of 2^63 or more",
            needed="dims whose product fits in 63 bits",
        )
        return
    bits, field, per_element = _STORAGE[kind]
    raw_bytes = len(tensor.raw_data)  # once: each access copies the data
    used = ["raw_data"] * (raw_bytes > 0) + [f for f in _DATA_FIELDS if len(getattr(tensor, f))]
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(tensor, place, (count * bits + 7) // 8, used, model, findings)
        return
    if tensor.HasField("segment"):
        findings.error(
            C117, "the tensor is stored in segments, which no tool supports", place=place, needed="whole data"
        )
        return
    if len(used) > 1:
        findings.error(
            C117, "the tensor stores its data twice", place=place, found=listing(used), needed="one data field"
        )
        return
    if used == ["raw_data"] and kind != TensorProto.STRING:
        have, need, unit = raw_bytes, (count * bits + 7) // 8, "bytes in raw_data"
    elif not used or used == [field]:
        packed = 8 // bits if 0 < bits < 8 else 1
        have = len(getattr(tensor, field)) if used else 0
        need, unit = (count * per_element + packed - 1) // packed, f"entries in {field}"
    else:
        findings.error(
            C117,
            f"{type_text(kind)} data is stored in the wrong field",
            place=place,
            found=quote(used[0]),
            needed=f"`{field}`" + ("" if kind == TensorProto.STRING else " or `raw_data`"),
        )
        return
    if have != need:
        findings.error(
            C117,
            "the tensor's data does not match its dims",
            place=place,
            found=f"{have} {unit}",
            needed=f"{need}, for {type_text(kind)} of dims {list(tensor.dims)}",
        )


def _check_sparse(sparse: Any, place: str, model: Model, findings: Findings) -> None:
    before = len(findings.found)
    check_tensor(sparse.values, f"{place}, values", model, findings)
    check_tensor(sparse.indices, f"{place}, indices", model, findings)
    if element_count(sparse.dims) is None:
        findings.error(C506, f"no tensor has the dims {list(sparse.dims)[:8]}", place=place)
    if len(findings.found) > before or sparse.values.data_location == TensorProto.EXTERNAL:
        return
    try:
        onnx.checker.check_sparse_tensor(sparse)
    except onnx.checker.ValidationError as error:
        findings.error(C117, "the sparse tensor is malformed", place=place, found=str(error).splitlines()[0])


def _check_external(
    tensor: Any, place: str, needed_bytes: int, used: list[str], model: Model, findings: Findings
) -> None:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            findings.error(C503, f"external_data gives {quote(entry.key)} twice", place=place)
        entries[entry.key] = entry.value
    if used:
        findings.error(
            C503, "the tensor has data in the file and outside it", place=place, found=listing(used), needed="one"
        )
    unknown = sorted(set(entries) - {"location", "offset", "length", "checksum", "basepath"})
    if unknown:
        findings.warning(
            C503,
            f"external_data has keys that the standard does not define: {listing(unknown)}",
            place=place,
            needed="location, offset, length, checksum",
        )
    location = entries.get("location", "")
    if not location:
        findings.error(C503, "the tensor's data is external, but it has no `location`", place=place)
        return
    numbers: dict[str, int] = {}
    for key in ("offset", "length"):
        if key in entries:
            value = entries[key]
            if not (value.isascii() and value.isdigit() and len(value) <= 19):
                findings.error(
                    C503, f"`{key}` is not a number", place=place, found=quote(value), needed="a non-negative number"
                )
                return
            numbers[key] = int(value)
    length = numbers.get("length", needed_bytes)
    if length != needed_bytes and tensor.data_type != TensorProto.STRING:
        findings.error(
            C503,
            "`length` does not match the tensor's dims",
            place=place,
            found=f"{length} bytes",
            needed=f"{needed_bytes} bytes, for {type_text(tensor.data_type)} of dims {list(tensor.dims)}",
        )
    if _escapes(location):
        findings.error(
            C501,
            "the tensor's external data lies outside the model's folder",
            place=place,
            found=f"location {quote(location)}",
            needed="a relative path without `..`",
            hint="do not open this model with other tools unless you trust its author",
        )
        return
    if model.folder is not None:
        _check_file(model.folder, location, numbers.get("offset", 0) + length, place, findings)


def _escapes(location: str) -> bool:
    parts = location.replace("\\", "/").split("/")
    windows_drive = len(parts[0]) == 2 and parts[0][1] == ":"
    return location[0] in "/\\~*" or windows_drive or ".." in parts or "\0" in location


def _check_file(folder: str, location: str, end: int, place: str, findings: Findings) -> None:
    """Report a data file that is missing, too short, or not a regular file inside `folder` (links may leave it)."""
    root = os.path.realpath(folder)
    path = os.path.join(root, location)
    real = os.path.realpath(path)
    if real != os.path.normpath(path) or not real.startswith(root.rstrip(os.sep) + os.sep):
        findings.error(
            C501,
            "the tensor's external data is reached through a symbolic link",
            place=place,
            found=f"location {quote(location)}",
            needed="a plain file in the model's folder",
        )
        return
    if not os.path.lexists(real):
        findings.error(
            C502,
            f"the external data file {quote(location)} is missing",
            place=place,
            needed="the file, in the folder of the model",
        )
        return
    status = os.stat(real)
    if not os.path.isfile(real) or status.st_nlink != 1:
        kind = "a hard link to another file" if os.path.isfile(real) else "not a file"
        findings.error(
            C502,
            f"the external data {quote(location)} is {kind}",
            place=place,
            needed="a plain file that has only this name",
        )
    elif status.st_size < end:
        findings.error(
            C502,
            f"the external data file {quote(location)} is too short",
            place=place,
            found=f"{status.st_size} bytes",
            needed=f"at least {end}",
        )
