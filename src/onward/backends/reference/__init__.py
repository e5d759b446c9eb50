"""The numpy oracle: onnx's reference evaluator with corrected operators."""

from __future__ import annotations

from onward.backends.onnx_backend import OnnxBackend
from onward.backends.onnx_backend import check_model as check_model
from onward.backends.reference.evaluator import Evaluator as Evaluator

BACKEND = OnnxBackend("reference")
"""ONNX's interface: `onnx.backend.test.BackendTest(onward.backends.reference, __name__)` runs ONNX's tests."""
prepare, run_model, run_node = BACKEND.prepare, BACKEND.run_model, BACKEND.run_node
supports_device, is_compatible = BACKEND.supports_device, BACKEND.is_compatible
prepare_training = BACKEND.prepare_training
