"""PyTorch's autograd where a function has a kink: the gradient there is the one of Onward's rule, and never NaN."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward

pytest.importorskip("torch")

OPERATORS = {
    "Clip": "b = Clip(a, zero, one)",
    "HardSigmoid": "b = HardSigmoid <alpha = 1.0, beta = 0.0> (a)",
    "Max": "b = Max(a, zero)",
    "ReduceL2": "b = ReduceL2 <keepdims = 1> (a, axis)",
    "ReduceMax": "b = ReduceMax <keepdims = 1> (a, axis)",
    "LpNormalization 1": "b = LpNormalization <p = 1> (a)",
    "LpNormalization 2": "b = LpNormalization <p = 2> (a)",
    "GlobalMaxPool": "u = Unsqueeze(a, axis) v = GlobalMaxPool(u) b = Squeeze(v, axis)",
    "GlobalLpPool": "u = Unsqueeze(a, axis) v = GlobalLpPool <p = 2> (u) b = Squeeze(v, axis)",
    "LpPool": "u = Unsqueeze(a, axis) v = LpPool <p = 2, kernel_shape = [2]> (u) b = Squeeze(v, axis)",
    "MaxPool": "u = Unsqueeze(a, axis) v = MaxPool <kernel_shape = [2]> (u) b = Squeeze(v, axis)",
}
TEXT = """<ir_version: 8, opset_import: ["" : 18]> net (float[N, 4] x) => (float[N, 4] y) {{
    a = Mul(x, S)
    zero = Constant <value = float {{0.0}}> ()
    one = Constant <value = float {{1.0}}> ()
    axis = Constant <value = int64[1] {{1}}> ()
    {0}
    total = ReduceSum <keepdims = 1> (b, axis)
    y = Add(total, x)
}}"""


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("row", [[-1, 0, 1, 1], [0, 0, 0, 0], [2, 1, -1, 2]])
def test_autograd_gives_the_gradient_of_the_rule_at_a_kink(name: str, row: list[float]) -> None:
    model = onnx.parser.parse_model(TEXT.format(OPERATORS[name]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "S"))
    made = onward.make_trainable(model, loss="l1", optimizer=onward.SGD(1.0), train=["S"])
    feeds = {"x": np.array([row], np.float32), "labels": np.full((1, 4), -100, np.float32)}

    trainers = [onward.Trainer(made, backend=backend) for backend in ("torch", "onnxruntime")]
    for trainer in trainers:
        trainer.step(feeds)

    assert trainers[0].session.describe()["gradients"] == {"train": "autograd"}
    found, expected = (trainer.parameters["S"] for trainer in trainers)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
