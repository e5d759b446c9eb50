"""Resize on ONNX Runtime, whose forward pass is not the reference's in every mode."""

from __future__ import annotations

import numpy as np
import pytest

import onward.testing.gradcheck as gradcheck
from cases import Case
from cases.resize import CASES
from models import stock_session
from onward.compiler.derivatives import gradient

LINEAR = [c for c in CASES if c.kind != "special" and not c.arguments.get("extrapolation_value")]


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_gradient_is_the_transpose_of_what_onnxruntime_computes(case: Case) -> None:
    model = case.model(dtype=np.float32)
    weights = gradcheck._random_weights(model, seed=0)
    lowered = gradient(gradcheck._with_loss(model, weights), of="testing/loss", wrt=["X"])
    session = stock_session(lowered)

    loss, dX = session.run(["testing/loss", "grad/X"], dict(model.feeds))

    # Y is linear in X, so the loss is exactly the product of its gradient with X.
    np.testing.assert_allclose(np.sum(dX * model.feeds["X"]), loss, rtol=1e-4, atol=1e-4)
