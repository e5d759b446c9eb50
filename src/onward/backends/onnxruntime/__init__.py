"""The ONNX Runtime backend."""

from __future__ import annotations

from onward.backends.onnx_backend import OnnxBackend
from onward.backends.onnx_backend import check_model as check_model

BACKEND = OnnxBackend("onnxruntime")
"""ONNX's interface: `onnx.backend.test.BackendTest(onward.backends.onnxruntime, __name__)` runs ONNX's tests."""
prepare, run_model, run_node = BACKEND.prepare, BACKEND.run_model, BACKEND.run_node
supports_device, is_compatible = BACKEND.supports_device, BACKEND.is_compatible
prepare_training = BACKEND.prepare_training
