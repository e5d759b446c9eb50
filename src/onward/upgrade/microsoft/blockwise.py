"""Weights of 2, 4 or 8 bits with one scale per block: the matrices and embeddings of language models.

The packed numbers become one byte each, one row per block, behind a DequantizeLinear: so they can be made floats and
trained (`make_trainable(dequantize=True)`) as all stored integers can.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.graph.walk import constant_of
from onward.upgrade.microsoft.call import Call, CannotDecompose, decomposes


@decomposes("MatMulNBits")
def mat_mul_n_bits(call: Call) -> list[Value | None]:
    """Y = A Wᵀ + bias with W = (B - zero_points) scales, block by block along the columns of W."""
    op, rows, columns = call.op, int(call.attr("N", 0)), int(call.attr("K", 0))
    bits, block = int(call.attr("bits", 4)), int(call.attr("block_size", 32))
    if call.attr("weight_prepacked", 0) or call.input(4) is not None:
        raise CannotDecompose("weights in an order of their own")
    blocks = -(-columns // block)
    packed, scales = _constant(call, 1), _constant(call, 2)
    zeros = None if call.input(3) is None else _constant(call, 3)
    values = _unpacked(packed.reshape(rows * blocks, -1), bits, block)
    weight = _floats(call, 1, values, scales.reshape(-1), _zero_points(zeros, rows, blocks, bits))
    weight = op.Reshape(weight, np.array([rows, blocks * block]))
    if blocks * block != columns:
        weight = op.Slice(weight, np.array([0]), np.array([columns]), np.array([1]))
    weight = op.Transpose(weight, perm=[1, 0])
    product = op.MatMul(call.required(0), _like(call, weight, call.required(0)))
    bias = call.input(5)
    return [product if bias is None else op.Add(product, bias)]


@decomposes("GatherBlockQuantized")
def gather_block_quantized(call: Call) -> list[Value | None]:
    """Y = Gather((data - zero_points) scales, indices), block by block along the last axis of the data."""
    op, block = call.op, int(call.attr("block_size", 128))
    data, scales = _constant(call, 0), _constant(call, 2)
    last = data.ndim - 1
    if int(call.attr("quantize_axis", 1)) % data.ndim != last or int(call.attr("gather_axis", 0)) != 0 or not block:
        raise CannotDecompose("blocks along another axis than the last")
    bits = int(call.attr("bits", 4)) if data.dtype == np.uint8 else 8
    if data.dtype.kind not in "iu" and data.dtype.name not in ("int4", "uint4"):
        raise CannotDecompose(f"data of type {data.dtype}")
    signed = data.dtype.name.startswith("int")
    numbers = data.astype(np.int8 if signed else np.uint8)
    width = data.shape[-1] * 8 // bits
    blocks = -(-width // block)
    if blocks * block != width:
        raise CannotDecompose("a last block that is not whole")
    rows = int(np.prod(data.shape[:-1]))
    values = _unpacked(numbers.reshape(rows * blocks, -1), bits, block)
    zeros = None if call.input(3) is None else _constant(call, 3)
    if data.dtype == np.uint8:
        points = _zero_points(zeros, rows, blocks, bits)
    else:  # one number each, and 0 where none is given
        points = np.zeros(rows * blocks, values.dtype) if zeros is None else zeros.astype(values.dtype).reshape(-1)
    table = _floats(call, 0, values, scales.reshape(-1), points)
    table = op.Reshape(table, np.array([*data.shape[:-1], width]))
    scale = call.required(2)
    return [_like(call, op.Gather(table, call.required(1), axis=0), scale)]


def _constant(call: Call, index: int) -> np.ndarray:
    found = constant_of(call.required(index))
    if found is None:
        raise CannotDecompose(f"input {index} of {call.node.op_type} is not stored in the file")
    return found


def _unpacked(rows: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return `count` numbers of each row of bytes, the low bits of a byte first."""
    if bits == 8:
        return rows[:, :count]
    if bits not in (2, 4):
        raise CannotDecompose(f"numbers of {bits} bits")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers: np.ndarray = (rows[..., None] >> shifts) & np.uint8(2**bits - 1)
    return numbers.reshape(len(rows), -1)[:, :count]


def _zero_points(zeros: np.ndarray | None, rows: int, blocks: int, bits: int) -> np.ndarray:
    """Return one zero point per block, as bytes; half of the range where the file has none."""
    if zeros is None:
        return np.full(rows * blocks, 2 ** (bits - 1), np.uint8)
    if zeros.dtype != np.uint8:
        raise CannotDecompose("zero points that are not integers")
    return _unpacked(zeros.reshape(rows, -1), bits, blocks).reshape(-1)


def _floats(call: Call, packed: int, values: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> Value:
    """Return the floats of integers, one scale and zero point per row; their name tells the input `packed`."""
    op = call.op
    stored = op.constant(values)
    stored.name = op.names.unique(f"{call.required(packed).name}_quantized")
    return op.DequantizeLinear(stored, op.constant(scales.astype(np.float32)), op.constant(zeros), axis=0)


def _like(call: Call, value: Value, other: Value) -> Value:
    """Return `value` in the type of `other`, which is float where it is unknown."""
    return value if other.dtype in (None, ir.DataType.FLOAT) else call.op.Cast(value, to=other.dtype)
