"""Weights that were stored as integers: how they were stored, and how to store them so again.

`make_trainable(dequantize=True)` turns such weights into floats. Each float weight then carries one entry in its
metadata, `onward.quantized`, from which `to_inference(quantize=True)` makes the integers again, at the same place:

    form      "qdq": behind a DequantizeLinear; "dynamic": in MatMulInteger or ConvInteger behind DynamicQuantizeLinear;
              "lstm": in DynamicQuantizeLSTM of ONNX Runtime; "gather": an embedding, dequantized behind Gather
    type      of the integers, "INT8"
    spread    the shape of the scale with which it broadcasts to the stored tensor
    shape     the shape of the scale as stored
    order     the order of the weight's axes as stored, if it is another one
    block     the number of elements of each block, and its axis, if there is one scale per block
    zero      the zero point of all elements; absent if it follows from the weights (not symmetric)
    low, high the least and greatest integer in use: of all, or one per scale
    names     of the integers, the scale, the zero point (empty: none) and of the floats
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import onnx_ir as ir

_KEY = "onward.quantized"


@dataclasses.dataclass(frozen=True)
class Storage:
    """How a weight was stored as integers; the module's docstring describes each field."""

    form: str
    type: str
    spread: list[int]
    shape: list[int]
    low: int | list[int]
    high: int | list[int]
    names: list[str]
    zero: int | None = None
    order: list[int] | None = None
    block: list[int] | None = None
    axis: int | None = None

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType[self.type]


def record(weight: ir.Value, storage: Storage) -> None:
    """Write into the metadata of a float weight how it was stored."""
    given = {k: v for k, v in dataclasses.asdict(storage).items() if v is not None}
    weight.metadata_props[_KEY] = json.dumps(given, sort_keys=True)


def storage_of(weight: ir.Value | None) -> Storage | None:
    """Return how a weight was stored as integers, or None."""
    text = None if weight is None else weight.metadata_props.get(_KEY)
    return None if text is None else Storage(**json.loads(text))


def forget(weight: ir.Value) -> None:
    """Remove the record of a weight."""
    weight.metadata_props.pop(_KEY, None)


@dataclasses.dataclass(frozen=True)
class Integers:
    """Integers with their scale and zero point, as arrays in the shapes that a file stores."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


def to_floats(stored: Integers, spread: tuple[int, ...], block: tuple[int, int] | None = None) -> np.ndarray:
    """Return (values - zero) * scale, in the type of the scale, as DequantizeLinear computes it."""
    scale, zero = (_wide(array.reshape(spread), stored.values.shape, block) for array in (stored.scale, stored.zero))
    # The difference of integers is exact; one product is rounded, in the type of the scale.
    steps = stored.values.astype(np.int64) - zero.astype(np.int64)
    floats: np.ndarray = steps.astype(scale.dtype) * scale
    return floats


def describe(
    stored: Integers, spread: tuple[int, ...], block: tuple[int, int] | None = None
) -> tuple[int | None, int | list[int], int | list[int]]:
    """Return the zero point, if it does not follow from the weights, and the least and greatest integer per scale."""
    dtype = ir.tensor(stored.values).dtype
    zero = stored.zero.astype(np.int64).reshape(spread)
    middle = 0 if dtype.min < 0 else (int(dtype.max) + 1) // 2
    symmetric = bool((zero == middle).all())
    values = stored.values.astype(np.int64)
    low, high = (_reduced(values, spread, block, function) for function in (np.minimum, np.maximum))
    low, high = np.minimum(low, zero), np.maximum(high, zero)
    return (int(zero.reshape(-1)[0]) if symmetric and zero.size else None), _short(low), _short(high)


def _short(array: np.ndarray) -> int | list[int]:
    """Return one number where all are equal."""
    flat = [int(v) for v in array.reshape(-1)]
    return flat[0] if flat and all(v == flat[0] for v in flat) else flat


def to_integers(floats: np.ndarray, storage: Storage, scale: np.ndarray | None = None) -> Integers:
    """Return the integers that are nearest to `floats`, stored as `storage` says.

    The range of the integers is the one that was in use, so weights that did not change become the integers that they
    were. `scale`, where given, is used as it is, with a zero point of 0.
    """
    dtype = storage.dtype
    stored = floats if storage.order is None else floats.transpose(storage.order)
    spread = tuple(storage.spread)
    block = None if storage.block is None else (storage.block[0], storage.block[1])
    least, most = int(dtype.min), int(dtype.max)
    if scale is None:
        wide = stored.astype(np.float64)
        low, high = (np.broadcast_to(np.array(v, np.float64).reshape(-1), (_size(spread),)).reshape(spread)
                     for v in (storage.low, storage.high))  # fmt: skip
        unused = low == high  # a channel of zeros says nothing about the range
        bottom = np.minimum(_reduced(wide, spread, block, np.minimum), 0.0)
        top = np.maximum(_reduced(wide, spread, block, np.maximum), 0.0)
        if storage.zero is not None:
            zero = np.full(spread, storage.zero, np.int64)
            reach = np.where(unused, most - zero, np.maximum(high - zero, zero - low))
            step = np.maximum(top / np.minimum(reach, most - zero), -bottom / np.minimum(reach, zero - least))
            step = np.where(step > 0, step, 1.0)
        else:
            low, high = np.where(unused, least, low), np.where(unused, most, high)
            step = (top - bottom) / (high - low)
            step = np.where(step > 0, step, 1.0)
            zero = np.clip(np.rint(low - bottom / step), least, most).astype(np.int64)
        scale = step.astype(floats.dtype)
    else:
        scale, zero = scale.reshape(spread), np.zeros(spread, np.int64)
    ratio = stored.astype(np.float64) / _wide(scale, stored.shape, block).astype(np.float64)
    values = np.clip(np.rint(ratio) + _wide(zero, stored.shape, block), least, most)
    numbers = dtype.numpy()
    shape = tuple(storage.shape)
    return Integers(values.astype(numbers), scale.reshape(shape), zero.reshape(shape).astype(numbers))


def _size(spread: tuple[int, ...]) -> int:
    return int(np.prod(spread, dtype=np.int64))


def _wide(array: np.ndarray, shape: tuple[int, ...], block: tuple[int, int] | None) -> np.ndarray:
    """Return an array with one element per scale such that it broadcasts to `shape`."""
    if block is None:
        return array
    size, axis = block
    repeated = np.repeat(array, size, axis=axis)
    return repeated.take(range(shape[axis]), axis=axis)


def _reduced(array: np.ndarray, spread: tuple[int, ...], block: tuple[int, int] | None, function: Any) -> np.ndarray:
    """Return the minimum or maximum for each scale, in the shape `spread`."""
    if array.size == 0:
        return np.zeros(spread, array.dtype)
    if block is not None:
        size, axis = block
        missing = -array.shape[axis] % size
        padding = [(0, missing if a == axis else 0) for a in range(array.ndim)]
        array = np.pad(array, padding, mode="edge")
        split = (*array.shape[:axis], -1, size, *array.shape[axis + 1 :])
        array = function.reduce(array.reshape(split), axis=axis + 1)
    axes = tuple(a for a in range(array.ndim) if spread[a] == 1 and array.shape[a] != 1)
    reduced: np.ndarray = function.reduce(array, axis=axes, keepdims=True) if axes else array
    return reduced.reshape(spread)


__all__ = ["Integers", "Storage", "describe", "forget", "record", "storage_of", "to_floats", "to_integers"]
