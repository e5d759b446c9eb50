"""Dropout on stock ONNX Runtime, which deletes one whose mask nobody reads."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import parser

from cases import array
from onward.compiler.derivatives import gradient

MODEL = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[8,16] X, float ratio, bool training) => (float[8,16] Z)
    { A = Neg(X) Y = Dropout(A, ratio, training) Z = Neg(Y) }"""


def test_training_dropout_on_onnxruntime_drops_the_same_elements_forward_and_backward() -> None:
    lowered = gradient(parser.parse_model(MODEL), of="Z", wrt=["X"])
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    X = array(8, 16, low=0.5).astype(np.float32)

    Z, dX = session.run(["Z", "grad/X"], {"X": X, "ratio": np.array(0.25, np.float32), "training": np.array(True)})

    assert 0 < (dX == 0).mean() < 0.6  # something was dropped, and not everything
    np.testing.assert_allclose(Z, X * dX, rtol=1e-6)
    np.testing.assert_allclose(dX[dX != 0], 1 / 0.75, rtol=1e-6)


def test_dropout_switched_off_at_run_time_passes_the_gradient() -> None:
    lowered = gradient(parser.parse_model(MODEL), of="Z", wrt=["X"])
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"X": np.ones((8, 16), np.float32), "ratio": np.array(0.25, np.float32), "training": np.array(False)}

    (dX,) = session.run(["grad/X"], feeds)

    np.testing.assert_array_equal(dX, np.ones((8, 16)))
