"""Spare memory: tensors of zeros without any, and mapped data that is not kept once it was copied."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

LARGE = 65_536
"""Bytes from which on the work is worth it."""


def without_zeros(array: np.ndarray) -> np.ndarray:
    """Return `array`, or, if all its bytes are zero, an array of zeros that takes memory only where it is written.

    An optimizer starts with moments of zeros, which are as large as the weights.

    >>> a, b = np.zeros(20_000), np.full(20_000, -0.0)
    >>> without_zeros(a) is a, without_zeros(b) is b
    (False, True)
    """
    if array.nbytes < LARGE or not array.flags.c_contiguous or array.dtype.hasobject:
        return array
    if array.reshape(-1).view(np.uint8).any():
        return array
    release(array)
    return zeros(array.shape, array.dtype)


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array of zeros that takes memory only where it is written, of whatever size.

    numpy.zeros takes small ones from memory that was used before, and writes the zeros.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(shape, dtype)
    data = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(data, dtype).reshape(shape)


def release(array: np.ndarray) -> None:
    """Give back the memory of an array over a file that is mapped to be read: what is read again comes from the file.

    Other arrays stay as they are, also those over a mapping that can be written: what was written to a private one
    (`numpy.memmap` with mode "c", or a mapping of no file) is nowhere else.
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or array.nbytes < LARGE or not hasattr(mmap, "MADV_DONTNEED"):
        return
    whole = np.frombuffer(base, np.uint8)
    if whole.flags.writeable:
        return
    first = array.ctypes.data - whole.ctypes.data
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only: the others have data of other tensors
    end = (first + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start and array.flags.c_contiguous:
        base.madvise(mmap.MADV_DONTNEED, start, end - start)
