"""Conversions between numpy arrays, ONNX element types and torch tensors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from onward.backends.graph.framework import B302
from onward.errors import BackendError, Diagnostic

_TORCH_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.UINT16: torch.uint16,
    ir.DataType.UINT32: torch.uint32,
    ir.DataType.UINT64: torch.uint64,
    ir.DataType.FLOAT8E4M3FN: torch.float8_e4m3fn,
    ir.DataType.FLOAT8E5M2: torch.float8_e5m2,
    ir.DataType.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    ir.DataType.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    ir.DataType.COMPLEX64: torch.complex64,
    ir.DataType.COMPLEX128: torch.complex128,
}
_ONNX_TYPES = {theirs: ours for ours, theirs in _TORCH_TYPES.items()}


def torch_type(dtype: int | ir.DataType) -> torch.dtype:
    """Return the torch type of an ONNX element type."""
    found = _TORCH_TYPES.get(ir.DataType(dtype))
    if found is None:
        raise BackendError(Diagnostic(B302, f"PyTorch has no element type {ir.DataType(dtype).name}"))
    return found


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor with a copy of the values of `array`."""
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    if array.dtype.name.startswith("float8"):
        return torch.from_numpy(np.array(array).view(np.uint8)).view(torch_type(ir.DataType.from_numpy(array.dtype)))
    if array.dtype.kind not in "biufc":
        raise BackendError(Diagnostic(B302, f"PyTorch has no element type {array.dtype.name}"))
    return torch.from_numpy(np.array(array, order="C"))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of the values of a tensor as an array."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return np.array(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    if tensor.dtype.itemsize == 1 and tensor.is_floating_point():
        return np.array(tensor.view(torch.uint8).numpy()).view(_ONNX_TYPES[tensor.dtype].numpy())
    return np.array(tensor.resolve_conj().numpy())
