"""Conversions between numpy arrays, ONNX element types and JAX arrays.

ONNX computes with int64 and JAX, unless told otherwise, with int32. All code of this backend runs with 64 bits
(`wide`), whatever the caller's setting is; it need not be changed for that.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import Array as Array

from onward.backends.graph.framework import B302
from onward.errors import BackendError, Diagnostic

_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental").enable_x64
"""Before JAX 0.8 it was experimental."""


def wide() -> AbstractContextManager[Any]:
    """Return a context in which JAX has 64-bit types."""
    context: AbstractContextManager[Any] = _enable_x64(True)
    return context


def has_doubles() -> bool:
    """Return whether JAX has 64-bit types outside of such a context, too."""
    return bool(jax.config.jax_enable_x64)


def jax_type(dtype: int | ir.DataType) -> np.dtype:
    """Return the JAX type of an ONNX element type."""
    if ir.DataType(dtype) in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        raise BackendError(Diagnostic(B302, f"JAX has no element type {ir.DataType(dtype).name}"))
    return np.dtype(ir.DataType(dtype).numpy())


def to_tensor(array: np.ndarray) -> Array:
    """Return a JAX array with the values of `array`."""
    array = np.asarray(array)
    if array.dtype.kind in "OUSMm":
        raise BackendError(Diagnostic(B302, f"JAX has no element type {array.dtype.name}"))
    with wide():
        tensor: Array = jnp.asarray(array)
    return tensor


def to_numpy(array: Any) -> np.ndarray:
    """Return a copy of the values of a JAX array."""
    return np.array(array)


def is_float(x: Any) -> bool:
    """Return whether the elements are floating-point numbers, those with few bits included."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))
