"""The element types of ONNX in MLIR, and their numbers as text and as bytes."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import onnx_ir as ir

# ONNX -> MLIR. onnx-mlir has signed integers without a sign in the name, as the arithmetic dialects do.
ELEMENTS = {
    ir.DataType.FLOAT: "f32", ir.DataType.DOUBLE: "f64", ir.DataType.FLOAT16: "f16", ir.DataType.BFLOAT16: "bf16",
    ir.DataType.INT8: "i8", ir.DataType.INT16: "i16", ir.DataType.INT32: "i32", ir.DataType.INT64: "i64",
    ir.DataType.UINT8: "ui8", ir.DataType.UINT16: "ui16", ir.DataType.UINT32: "ui32", ir.DataType.UINT64: "ui64",
    ir.DataType.BOOL: "i1", ir.DataType.INT4: "i4", ir.DataType.UINT4: "ui4", ir.DataType.INT2: "i2",
    ir.DataType.UINT2: "ui2", ir.DataType.COMPLEX64: "complex<f32>", ir.DataType.COMPLEX128: "complex<f64>",
    ir.DataType.FLOAT8E4M3FN: "f8E4M3FN", ir.DataType.FLOAT8E4M3FNUZ: "f8E4M3FNUZ", ir.DataType.FLOAT8E5M2: "f8E5M2",
    ir.DataType.FLOAT8E5M2FNUZ: "f8E5M2FNUZ", ir.DataType.FLOAT4E2M1: "f4E2M1FN", ir.DataType.FLOAT8E8M0: "f8E8M0FNU",
    ir.DataType.FLOAT6E2M3: "f6E2M3FN", ir.DataType.FLOAT6E3M2: "f6E3M2FN", ir.DataType.STRING: "onnx.String",
}  # fmt: skip
BY_NAME = {name: kind for kind, name in ELEMENTS.items()}

_INTEGER = re.compile(r"(s|u)?i(\d{1,3})")


def integer_width(name: str) -> tuple[int, bool] | None:
    """Return (bits, unsigned) of an integer type; None for another type."""
    found = _INTEGER.fullmatch(name)
    return None if found is None else (int(found[2]), found[1] == "u")


@functools.cache
def storage(name: str) -> np.dtype[Any] | None:
    """Return the little-endian numpy type that holds one element; None if there is none.

    >>> [storage(name).name for name in ("f32", "i4", "si64", "bf16")]
    ['float32', 'int8', 'int64', 'bfloat16']
    """
    if name == "index":
        return np.dtype("<i8")
    width = integer_width(name)
    if width is not None:
        bits, unsigned = width
        size = next((s for s in (8, 16, 32, 64) if bits <= s), None)
        return None if size is None else np.dtype(f"<{'u' if unsigned or bits == 1 else 'i'}{size // 8}")
    kind = BY_NAME.get(name)
    if kind is None or kind == ir.DataType.STRING:
        return None
    return np.dtype(kind.numpy()).newbyteorder("<")


@functools.cache
def float_width(name: str) -> int | None:
    """Return the bits of a floating-point type as MLIR stores it; None for another type."""
    kind = storage(name)
    if kind is None or integer_width(name) is not None or name.startswith(("complex", "index")):
        return None
    return kind.itemsize * 8


def float_bits(text: str, name: str) -> int:
    """Return the bits of a decimal number in a floating-point type.

    >>> hex(float_bits("1.0", "f32"))
    '0x3f800000'
    """
    kind = storage(name)
    assert kind is not None
    with np.errstate(over="ignore"):
        return int.from_bytes(np.array(float(text)).astype(kind).tobytes(), "little")


def float_text(bits: int, name: str) -> str:
    """Return a floating-point number as MLIR reads it back: in decimals, or its bits where it is not finite.

    >>> float_text(0x3F800000, "f32"), float_text(0x3DCCCCCD, "f32"), float_text(0x7FC00001, "f32")
    ('1.0', '0.1', '0x7FC00001')
    """
    kind = storage(name)
    assert kind is not None
    value = np.frombuffer(bits.to_bytes(kind.itemsize, "little"), kind)[0]
    if name in ("f32", "f64") and np.isfinite(value):
        shortest = repr(float(value)) if name == "f64" else str(value)
        mantissa, mark, exponent = shortest.partition("e")
        text = (mantissa if "." in mantissa else f"{mantissa}.0") + mark + exponent
        if float_bits(text, name) == bits:
            return text
    return f"0x{bits:0{kind.itemsize * 2}X}"


def is_splat(data: bytes | memoryview, size: int) -> bool:
    """Return whether all elements have the same bits."""
    return bytes(data[size:]) == bytes(data[:-size])  # each element is its neighbour
