"""IDX files, the format of MNIST: a type byte, the dimensions, big-endian numbers; gzip'ed or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from onward.errors import DataError, Diagnostic

T132 = "T132"

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NAMES = {
    "train": ("train-images", "train-labels"),
    "evaluate": ("t10k-images", "t10k-labels"),
}
_SUFFIXES = {"images": ("-idx3-ubyte", ".idx3-ubyte"), "labels": ("-idx1-ubyte", ".idx1-ubyte")}


def _open(path: Path) -> BinaryIO:
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else open(path, "rb")  # type: ignore[return-value]  # GzipFile reads alike


def is_idx(path: Path) -> bool:
    """Return whether the file begins as an IDX file does."""
    try:
        with _open(path) as file:
            start = file.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return len(start) == 4 and start[:2] == b"\0\0" and start[2] in _TYPES and 0 < start[3] <= 8


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an IDX file, in native byte order.

    Raises:
        DataError: the size does not agree with the header; no more is read than the header announces.
    """
    try:
        with _open(path) as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES:
                raise _damaged(path, "it does not begin as an IDX file does")
            dims = file.read(4 * start[3])
            if len(dims) != 4 * start[3]:
                raise _damaged(path, "the header is cut off")
            shape = tuple(int(d) for d in np.frombuffer(dims, dtype=">u4"))
            dtype = np.dtype(_TYPES[start[2]])
            wanted = math.prod(shape) * dtype.itemsize
            data = file.read(wanted)
            if len(data) != wanted:
                raise _damaged(path, f"the header announces {wanted} bytes of {shape}, the file has {len(data)}")
            if file.read(1):
                raise _damaged(path, f"there is more than the {wanted} bytes of {shape} that the header announces")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, str(error)) from error
    return np.frombuffer(data, dtype=dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def find_pair(folder: Path, part: str) -> tuple[Path, Path] | None:
    """Return (images, labels) of the classic MNIST names for "train" or "evaluate"; None when neither is there.

    Raises:
        DataError: one of the two is missing.
    """
    found, missing = [], []
    for stem, kind in zip(_NAMES[part], ("images", "labels"), strict=True):
        names = [f"{stem}{suffix}{packed}" for suffix in _SUFFIXES[kind] for packed in ("", ".gz")]
        path = next((folder / n for n in names if (folder / n).is_file()), None)
        if path is not None:
            found.append(path)
        else:
            missing.append(f"{names[0]} (or .gz)")
    if len(found) == 1:
        raise DataError(
            Diagnostic(
                T132, f"`{found[0].name}` has no counterpart", place=str(folder), needed=f"{missing[0]} beside it"
            )
        )
    return (found[0], found[1]) if found else None


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(Diagnostic(T132, f"`{path.name}` is not a complete IDX file: {problem}", place=str(path.parent)))
