"""Weights of float16: with what the last rounding left out, they are exactly the float32 weights of a loop in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward

SLOPE = np.float16(2.0**-16)  # of the loss; one step changes a weight near 1 by a 64th of its spacing


def weighted_sum() -> onnx.ModelProto:
    """Return `x` -> `y`, the sum of x · W, in float16."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"])],
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["N", 1])],
        [numpy_helper.from_array(np.array([[1.0], [0.75], [-1.0], [0.001]], np.float16), "W")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def trainer(backend: str, **options: Any) -> onward.Trainer:
    model = onward.make_trainable(
        weighted_sum(),
        loss=lambda op, outputs, labels: op.ReduceSum(outputs, keepdims=0),
        label=None,
        optimizer=onward.SGD(0.5, **options),
    )
    return onward.Trainer(model, backend=backend)


@pytest.mark.parametrize("backend", ["onnxruntime", "reference", "torch", "jax"])
def test_updates_below_the_spacing_of_float16_add_up(backend: str) -> None:
    trained = trainer(backend)
    master = trained.state["W"].astype(np.float32)

    for _ in range(200):
        trained.step({"x": np.full((1, 4), SLOPE)})
        master -= np.float32(0.5) * np.float32(SLOPE)

    W, left = trained.state["W"], trained.state["rounding/W"]
    np.testing.assert_array_equal(W, master.astype(np.float16))
    np.testing.assert_array_equal(W.astype(np.float32) + left, master)
    assert W[0, 0] < 1.0


def test_a_replaced_weight_starts_from_its_own_value() -> None:
    trained = trainer("onnxruntime")
    for _ in range(50):
        trained.step({"x": np.full((1, 4), SLOPE)})

    trained.set_state({"W": np.full((4, 1), 0.25, np.float16)})
    trained.step({"x": np.full((1, 4), SLOPE)})

    spacing = 2.0**-10  # of the weights before: half of it is left over at most
    np.testing.assert_allclose(trained.state["W"], 0.25, atol=spacing / 2)


def test_accumulated_gradients_are_rounded_with_their_update_only() -> None:
    trained = trainer("onnxruntime", accumulate=2)

    trained.step({"x": np.full((1, 4), SLOPE)})
    assert not trained.state["rounding/W"].any()
    trained.step({"x": np.full((1, 4), SLOPE)})

    assert trained.state["rounding/W"][0, 0] == -0.5 * np.float32(SLOPE)


def test_the_compiled_update_gives_the_same_bytes() -> None:
    model = onward.make_trainable(
        weighted_sum(), loss="mse", optimizer=onward.Adam(1e-3), loss_scale=onward.LossScale(2.0**12, growth_interval=4)
    )
    trainers = [onward.Trainer(model, fused=fused) for fused in (False, True)]
    rng = np.random.default_rng(0)

    for _ in range(20):
        feeds = {"x": rng.standard_normal((8, 4)).astype(np.float16), "labels": np.ones((8, 1), np.float16)}
        for each in trainers:
            each.step(feeds)

    plain, fused = (each.state for each in trainers)
    assert [n for n in plain if plain[n].tobytes() != fused[n].tobytes()] == []


@pytest.mark.parametrize("decay", [0.999, 0.9999])
def test_a_moving_average_in_float16_follows_the_weights(decay: float) -> None:
    trained = trainer("onnxruntime", ema=decay)
    trained.set_state({"W": np.full((4, 1), 0.5, np.float16), "ema/W": np.full((4, 1), 0.25, np.float16)})

    for _ in range(1000):
        trained.step({"x": np.zeros((1, 4), np.float16)})

    np.testing.assert_allclose(trained.state["ema/W"], 0.5 - 0.25 * decay**1000, rtol=1e-3)


def test_nothing_of_an_old_weight_is_added_to_a_new_one() -> None:
    trained = trainer("onnxruntime")
    for _ in range(3):
        trained.step({"x": np.full((1, 4), SLOPE)})
    assert trained.state["rounding/W"].any()

    trained.set_state({"W": np.zeros((4, 1), np.float16)})
    trained.step({"x": np.zeros((1, 4), np.float16)})

    assert not trained.state["W"].any()
