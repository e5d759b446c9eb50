"""Run native kernels in ONNX Runtime, for their tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

from onward.backends.onnxruntime.native import library


def run_kernels(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], threads: int) -> list[np.ndarray]:
    """Return the outputs of a model with native operators."""
    path = library.load()
    assert path is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # the shapes of the outputs are not stated
    options.register_custom_ops_library(path)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, dict(feeds))]
