"""Models with ONNX Runtime's own operators, as its transformer optimizer writes them, can be trained."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import onward
from models import batch, perceptron


@pytest.mark.parametrize("opset", [14, 18])
def test_a_model_with_fused_operators_trains(opset: int) -> None:
    model = perceptron(opset=opset)
    model.graph.node[1].op_type = "FastGelu"
    model.graph.node[1].domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    training = onward.make_trainable(model, loss="cross_entropy", optimizer=onward.Adam(1e-2))
    trainer = onward.Trainer(training)
    losses = [float(trainer.step(batch())["loss"]) for _ in range(30)]

    assert onward.check(training).ok
    assert losses[-1] < 0.8 * losses[0]
    assert np.isfinite(losses).all()
