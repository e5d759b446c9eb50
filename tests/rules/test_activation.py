"""What the cases of activation do not say: half precision, and types that only some opsets have."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import parser

from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient

LARGE = np.array([-1000.0, -300.0, -2.0, 0.0, 2.0, 300.0, 1000.0], np.float16)


@pytest.mark.parametrize(
    "node", ["Gelu(X)", 'Gelu<approximate="tanh">(X)', "Mish(X)", "Softplus(X)", "Elu(X)", "HardSwish(X)"]
)
def test_gradient_is_finite_in_half_precision_at_large_inputs(node: str) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 22]>
        net (float16[7] X) => (float16[7] Y) {{ Y = {node} }}""")

    dX = Evaluator(gradient(model, of="Y", wrt=["X"])).run({"X": LARGE})["grad/X"]

    assert np.isfinite(dX).all()
    np.testing.assert_allclose(dX[[0, -1]], [0, 1], atol=1e-3)


def test_celu_of_opset_12_agrees_with_torch_on_onnxruntime() -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        net (float[4] X) => (float[4] Y) { Y = Celu<alpha=2.5>(X) }""")
    X = np.array([-3.0, -0.5, 0.5, 4.0], np.float32)

    lowered = gradient(model, of="Y", wrt=["X"])
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    (actual,) = session.run(["grad/X"], {"X": X})

    tensor = torch.tensor(X, requires_grad=True)
    torch.nn.functional.celu(tensor, alpha=2.5).sum().backward()
    np.testing.assert_allclose(actual, tensor.grad, rtol=1e-5)
