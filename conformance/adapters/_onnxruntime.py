"""Run a model on ONNX Runtime, with every element type that it has."""

from __future__ import annotations

import ctypes
import unittest
from typing import Any

import numpy as np
import onnx
import onnxruntime

_LACKS = (
    "NOT_IMPLEMENTED",
    "No Op registered",
    "guarantees* support",
    "Unsupported model IR version",
    "is not a registered",
)


class Session:
    """A model ready to run; what ONNX Runtime says that it lacks is a skip."""

    def __init__(self, model: onnx.ModelProto, *, memory_pattern: bool = True) -> None:
        options = onnxruntime.SessionOptions()
        options.enable_mem_pattern = memory_pattern
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            self.session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise skipped(error) from error
        self.names = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]
        kinds = [v.type for v in [*self.session.get_inputs(), *self.session.get_outputs()]]
        self._as_values = all(k.startswith("tensor(") and k != "tensor(string)" for k in kinds)

    def __call__(self, feeds: dict[str, Any]) -> dict[str, Any]:
        try:
            if not self._as_values:
                return dict(zip(self.outputs, self.session.run(None, feeds), strict=False))
            values = {name: _to_runtime(np.asarray(v)) for name, v in feeds.items()}
            found = self.session.run_with_ort_values(self.outputs, values)
        except Exception as error:
            raise skipped(error) from error
        return dict(zip(self.outputs, map(_from_runtime, found), strict=False))

    def run(self, inputs: Any) -> tuple[Any, ...]:
        return tuple(self(dict(zip(self.names, inputs, strict=False))).values())


def skipped(error: Exception) -> Exception:
    """Return a skip for an error that means "not implemented", else the error."""
    text = " ".join(str(error).split())
    return unittest.SkipTest(text[:500]) if any(part in text for part in _LACKS) else error


def _plain(dtype: np.dtype) -> bool:
    return dtype.isbuiltin == 1


def _to_runtime(array: np.ndarray) -> Any:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if _plain(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    data = onnx.numpy_helper.from_array(array)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), data.data_type)
    ctypes.memmove(value.data_ptr(), data.raw_data, len(data.raw_data))
    return value


def _from_runtime(value: Any) -> np.ndarray:
    kind = onnx.helper.tensor_dtype_to_np_dtype(value.element_type())
    if _plain(np.dtype(kind)):
        return np.asarray(value.numpy())
    size = value.tensor_size_in_bytes()
    proto = onnx.TensorProto(data_type=value.element_type(), dims=value.shape())
    proto.raw_data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.asarray(onnx.numpy_helper.to_array(proto))
