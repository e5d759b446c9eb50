"""Conversions between numpy arrays, ONNX element types and TensorFlow tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from onward.backends.graph.framework import B302
from onward.errors import BackendError, Diagnostic

# TensorFlow knows elements of 4 bits and less and the `fnuz` types, too, but it cannot even cast them.
_TYPES = {
    ir.DataType.FLOAT: tf.float32,
    ir.DataType.DOUBLE: tf.float64,
    ir.DataType.FLOAT16: tf.float16,
    ir.DataType.BFLOAT16: tf.bfloat16,
    ir.DataType.BOOL: tf.bool,
    ir.DataType.INT8: tf.int8,
    ir.DataType.INT16: tf.int16,
    ir.DataType.INT32: tf.int32,
    ir.DataType.INT64: tf.int64,
    ir.DataType.UINT8: tf.uint8,
    ir.DataType.UINT16: tf.uint16,
    ir.DataType.UINT32: tf.uint32,
    ir.DataType.UINT64: tf.uint64,
    ir.DataType.FLOAT8E4M3FN: tf.dtypes.experimental.float8_e4m3fn,
    ir.DataType.FLOAT8E5M2: tf.dtypes.experimental.float8_e5m2,
    ir.DataType.COMPLEX64: tf.complex64,
    ir.DataType.COMPLEX128: tf.complex128,
}
_KNOWN = frozenset(_TYPES.values())


def tf_type(dtype: int | ir.DataType) -> tf.DType:
    """Return the TensorFlow type of an ONNX element type."""
    found = _TYPES.get(ir.DataType(dtype))
    if found is None:
        raise _no_type(ir.DataType(dtype).name)
    return found


def type_named(name: str) -> tf.DType:
    """Return the TensorFlow type of a numpy type, by its name."""
    try:
        found = tf.as_dtype(name)
    except TypeError as error:
        raise _no_type(name) from error
    if found not in _KNOWN:
        raise _no_type(name)
    return found


def to_tensor(array: np.ndarray) -> tf.Tensor:
    """Return a tensor with a copy of the values of `array`."""
    array = np.asarray(array)
    return tf.constant(array, type_named(array.dtype.name))


def to_numpy(tensor: tf.Tensor) -> np.ndarray:
    """Return a copy of the values of a tensor as an array."""
    return np.array(tensor.numpy())


def is_float(x: tf.Tensor) -> bool:
    """Return whether the elements are floating-point numbers, those of 8 bits included."""
    return bool(x.dtype.is_floating) or "float" in x.dtype.name


def read(value: Any) -> tf.Tensor:
    """Return a value as a tensor: what a variable holds now, the rows of a sparse gradient as a whole."""
    return tf.convert_to_tensor(value)


def replicas() -> int:
    """Return how many replicas of a model train together, under a strategy of tf.distribute."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _no_type(name: str) -> BackendError:
    return BackendError(Diagnostic(B302, f"TensorFlow has no element type {name}"))
