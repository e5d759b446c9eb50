"""Read and write safetensors files whose header contains checksums of every tensor and of the header itself.

Any safetensors reader opens such a file. The header's metadata holds `onward`, the JSON of the caller's data and of the
sha256 of each tensor, and `sha256`, the digest of the header and its length with this field set to zeros. So every bit
of the file is covered: one flipped bit or a missing end is detected.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from onward.storage.sparing import without_zeros

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_DTYPES = {short: name for name, short in _NAMES.items()}
_ZEROS = "0" * 64
_MARK = b'"sha256":"'
_MAX_HEADER = 100_000_000


class Damaged(Exception):
    """The file differs from what was written; the message says how."""


def tensor_file_chunks(tensors: Mapping[str, np.ndarray], data: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file with `tensors` and `data`, which JSON must be able to represent."""
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    views = {name: a.reshape(-1).view(np.uint8).data for name, a in arrays.items()}
    digests = {name: hashlib.sha256(view).hexdigest() for name, view in views.items()}
    body = json.dumps({"data": data, "tensors": digests}, sort_keys=True, separators=(",", ":"), allow_nan=True)
    header: dict[str, Any] = {"__metadata__": {"sha256": _ZEROS, "onward": body}}
    offset = 0
    for name, array in arrays.items():
        size = views[name].nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    raw = json.dumps(header, separators=(",", ":")).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    length = len(raw).to_bytes(8, "little")
    digest = hashlib.sha256(length + raw).hexdigest()
    yield length
    yield raw.replace(_MARK + _ZEROS.encode(), _MARK + digest.encode(), 1)
    yield from views.values()


def can_store(array: np.ndarray) -> bool:
    """Return True when the element type of `array` has a name in safetensors."""
    return array.dtype.name in _NAMES


def read_tensor_file(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return (tensors, data) of a file written from `tensor_file_chunks`, after verifying every bit of it.

    Raises:
        Damaged: anything differs from what was written.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        return _read(file)


def read_tensor_bytes(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return (tensors, data) as `read_tensor_file` does, from memory."""
    return _read(io.BytesIO(content))


def _read(file: BinaryIO) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        return _parse(file)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        # The checksums are right, so the file was made like this on purpose: the error must still be clear.
        raise Damaged(f"the header is not that of such a file ({type(error).__name__}: {error})") from error


def _parse(file: BinaryIO) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    total = file.seek(0, io.SEEK_END)
    file.seek(0)
    length = file.read(8)
    size = int.from_bytes(length, "little")
    if len(length) < 8 or size > min(_MAX_HEADER, total):
        raise Damaged("the header is cut off or its length is wrong")
    raw = file.read(size)
    if len(raw) != size:
        raise Damaged("the header is cut off")
    header, body = _read_header(length, raw)
    tensors = {}
    position = 0
    for name, info in header.items():
        first, last = info["data_offsets"]
        if first != position or last < first:
            raise Damaged(f"tensor `{name}` is not where the header says")
        if 8 + size + last > total:
            raise Damaged(f"the file ends inside tensor `{name}`")
        tensors[name] = _read_tensor(file.read(last - first), name, info, body["tensors"].get(name))
        position = last
    if file.read(1):
        raise Damaged("there are bytes after the last tensor")
    return tensors, body["data"]


def _read_header(length: bytes, raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    at = raw.find(_MARK)
    digest = raw[at + len(_MARK) : at + len(_MARK) + 64]
    if at < 0 or len(digest) != 64:
        raise Damaged("the header has no checksum")
    blank = raw[: at + len(_MARK)] + _ZEROS.encode() + raw[at + len(_MARK) + 64 :]
    if hashlib.sha256(length + blank).hexdigest().encode() != digest:
        raise Damaged("the checksum of the header does not match")
    header = json.loads(raw)
    metadata = header.pop("__metadata__")
    return header, json.loads(metadata["onward"])


def _read_tensor(data: bytes, name: str, info: Mapping[str, Any], digest: str | None) -> np.ndarray:
    first, last = info["data_offsets"]
    if len(data) != last - first:
        raise Damaged(f"the file ends inside tensor `{name}`")
    if digest is None or hashlib.sha256(data).hexdigest() != digest:
        raise Damaged(f"the checksum of tensor `{name}` does not match")
    array = without_zeros(np.frombuffer(data, _dtype(info["dtype"])))
    return (array if array.flags.writeable else array.copy()).reshape(info["shape"])


def _dtype(short: str) -> np.dtype[Any]:
    name = _DTYPES[short]
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return small
    return np.dtype(name)
