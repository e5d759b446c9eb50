"""ONNX's tensors in MLIR: `TensorProto` and back, with the field that holds the numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.mlir.messages import apply, difference, exact, fields_of, refuse
from onward.mlir.numbers import storage
from onward.mlir.syntax import Attribute, Dense, Dialect, Scalar, Sparse, String, Tensor, text
from onward.mlir.types import element_number, element_type
from onward.storage.limits import check_tensor

STORED = "stored"
"""In the patch of a tensor: the field of TensorProto that holds its numbers, where that is not `raw_data`."""

_TYPED: dict[str, tuple[str, str]] = {  # the field, and the numpy type of its entries
    "FLOAT": ("float_data", "<f4"), "COMPLEX64": ("float_data", "<f4"), "DOUBLE": ("double_data", "<f8"),
    "COMPLEX128": ("double_data", "<f8"), "INT64": ("int64_data", "<i8"), "UINT64": ("uint64_data", "<u8"),
    "UINT32": ("uint64_data", "<u4"), "INT32": ("int32_data", "<i4"), "INT16": ("int32_data", "<i2"),
    "UINT16": ("int32_data", "<u2"), "INT8": ("int32_data", "<i1"), "FLOAT16": ("int32_data", "<u2"),
    "BFLOAT16": ("int32_data", "<u2"),
}  # fmt: skip


def _typed(kind: ir.DataType) -> tuple[str, str]:
    return _TYPED.get(kind.name, ("int32_data", "<u1"))


def to_dense(proto: onnx.TensorProto) -> Dense | None:
    """Return the constant of a tensor; None if its data is elsewhere, or is not what its shape and type need."""
    element = element_type(proto.data_type)
    if (
        element is None
        or proto.data_location == onnx.TensorProto.EXTERNAL
        or any(True for _ in check_tensor(proto, ""))
    ):
        return None
    kind = Tensor(tuple(proto.dims), element)
    if isinstance(element, Dialect):
        return Dense(kind, texts=tuple(proto.string_data))
    dtype = ir.DataType(proto.data_type)
    if proto.HasField("raw_data"):
        data = proto.raw_data
    else:
        field, numpy_type = _typed(dtype)
        entries = np.array(getattr(proto, field), dtype=_wide(field))
        data = entries.astype(numpy_type).tobytes()
    if dtype.bitwidth < 8:
        data = _unpacked(data, dtype, math.prod(proto.dims))
    return Dense(kind, data)


def _wide(field: str) -> Any:
    return {"int32_data": np.int32, "int64_data": np.int64, "uint64_data": np.uint64}.get(field, np.float64)


def _unpacked(data: bytes, kind: ir.DataType, size: int) -> bytes:
    """Return one byte for each element of several in a byte; that of a negative integer has its sign."""
    bits = kind.bitwidth
    rows = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=size * bits).reshape(size, bits)
    values = np.packbits(rows, axis=1, bitorder="little").reshape(size)
    if kind.name.startswith("INT"):
        return ((values << (8 - bits)).view(np.int8) >> (8 - bits)).tobytes()
    return values.tobytes()


def _packed(data: bytes, kind: ir.DataType) -> bytes:
    rows = np.unpackbits(np.frombuffer(data, np.uint8)[:, None], axis=1, bitorder="little")
    return np.packbits(rows[:, : kind.bitwidth].reshape(-1), bitorder="little").tobytes()


def from_dense(dense: Dense, place: str, stored: str = "raw_data") -> onnx.TensorProto:
    """Return the tensor of a constant, with its numbers in the field `stored`.

    Raises:
        ModelError: ONNX has no such tensor.
    """
    proto = onnx.TensorProto()
    proto.data_type = element_number(dense.type.element, place)
    proto.dims.extend(d or 0 for d in dense.type.shape or ())
    if dense.texts is not None:
        proto.string_data.extend(dense.texts)
        return proto
    dtype = ir.DataType(proto.data_type)
    data = bytes(dense.data) if dtype.bitwidth >= 8 else _packed(bytes(dense.data), dtype)
    if stored == "raw_data":
        proto.raw_data = data
        return proto
    field, numpy_type = _typed(dtype)
    if stored != field:
        refuse(f"the numbers of a tensor of {dtype.name} are not in the field `{stored[:60]}`", place=place)
    getattr(proto, field).extend(np.frombuffer(data, numpy_type).astype(_wide(field)).tolist())
    return proto


def tensor_patch(proto: onnx.TensorProto, dense: Dense, name: str | None = None) -> dict[str, Attribute]:
    """Return what a tensor has beyond the constant; `name` is that of the value, if the text gives it."""
    stored = "raw_data"
    if dense.texts is None and not proto.HasField("raw_data"):
        stored = _typed(ir.DataType(proto.data_type))[0]
    natural = from_dense(dense, "", stored)
    if name is not None:
        natural.name = name
    patch = exact(natural, proto, difference(natural, proto))
    return {STORED: text(stored), **patch} if stored != "raw_data" else patch


def tensor_of(dense: Dense, patch: dict[str, Attribute], place: str, name: str | None = None) -> onnx.TensorProto:
    """Return the tensor of a constant and a patch from `tensor_patch`."""
    rest = dict(patch)
    stored = rest.pop(STORED, None)
    proto = from_dense(dense, place, stored.text if isinstance(stored, String) else "raw_data")
    if name is not None:
        proto.name = name
    return apply(proto, rest, place)


def to_sparse(proto: onnx.SparseTensorProto) -> Sparse | None:
    """Return the constant of a sparse tensor; None if MLIR cannot say it."""
    values, indices = to_dense(proto.values), to_dense(proto.indices)
    if values is None or indices is None or values.texts is not None or proto.indices.data_type != 7:
        return None
    dims, size = list(proto.dims), math.prod(proto.dims)
    if len(proto.values.dims) != 1 or any(d < 0 for d in dims) or not size:
        return None
    count = proto.values.dims[0]
    table = np.frombuffer(bytes(indices.data), "<i8")
    if list(proto.indices.dims) == [count]:  # of the flat tensor
        if np.any((table < 0) | (table >= size)):
            return None
        table = np.stack(np.unravel_index(table, dims), axis=-1).astype("<i8").reshape(count, len(dims))
    elif list(proto.indices.dims) != [count, len(dims)]:
        return None
    return Sparse(Tensor(tuple(dims), values.type.element), table.reshape(count, len(dims)), bytes(values.data))


def from_sparse(sparse: Sparse, place: str) -> onnx.SparseTensorProto:
    """Return the sparse tensor of a constant."""
    proto = onnx.SparseTensorProto()
    count = len(sparse.indices)
    kind = sparse.type.element
    proto.values.CopyFrom(from_dense(Dense(Tensor((count,), kind), sparse.values), place))
    indices = np.ascontiguousarray(sparse.indices, "<i8")
    proto.indices.CopyFrom(from_dense(Dense(Tensor(indices.shape, Scalar("i64")), indices.tobytes()), place))
    proto.dims.extend(d or 0 for d in sparse.type.shape or ())
    return proto


def element_size(kind: Tensor) -> int:
    """Return the bytes of one element in MLIR; 0 for texts."""
    found = storage(kind.element.name) if isinstance(kind.element, Scalar) else None
    return 0 if found is None else found.itemsize


def inner_patch(patch: dict[str, Attribute], field: str, place: str) -> dict[str, Attribute]:
    """Return the patch of a field of a patched message."""
    return fields_of(patch[field], place) if field in patch else {}
