"""GRU layers on ONNX Runtime keep their gates instead of computing them twice."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.backends import open_session
from onward.backends.onnxruntime.gru_gates import KeepGatesOfGru
from onward.backends.onnxruntime.lstm_gates import WORTH_IT
from onward.model.training_model import TrainingModel
from onward.passes.base import Unit

STEPS, BATCH, FEATURES = 5, 3, 4


def rewritten(program: onward.Program) -> tuple[bool, ir.Model]:
    """Return whether the pass changes the step, and what it makes of it."""
    unit = Unit(TrainingModel(program.entries["train"].step.copy_model()))
    return KeepGatesOfGru()(unit), unit.model


def gru(hidden: int = WORTH_IT, *, bias: bool = True, state: bool = False, **attributes: object) -> onnx.ModelProto:
    """Return `x` [time, batch, features] -> GRU -> its last hidden state, and the mean of all -> `y`."""
    rng = np.random.default_rng(0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    weights = [
        weight("W", directions, 3 * hidden, FEATURES),
        weight("R", directions, 3 * hidden, hidden),
        weight("V", hidden, 2),
    ]
    inputs = ["x", "W", "R", "B" if bias else "", "", *(["h0"] if state else [])]
    if bias:
        weights.append(weight("B", directions, 6 * hidden))
    if state:
        weights.append(weight("h0", directions, BATCH, hidden))
    attributes = {"linear_before_reset": 1, **attributes}
    nodes = [
        helper.make_node("GRU", inputs, ["Y", "Y_h"], name="layer", hidden_size=hidden, **attributes),
        helper.make_node("ReduceMean", ["Y"], ["mean"], name="mean", keepdims=0),
        helper.make_node("Add", ["Y_h", "mean"], ["sum"], name="sum"),
        helper.make_node("MatMul", ["sum", "V"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "gru",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, "N", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [directions, "N", 2])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def compiled(model: onnx.ModelProto) -> onward.Program:
    return onward.compile(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.01)))


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"state": True}, {"state": True, "bias": False}],
    ids=lambda o: " ".join(o) or "plain",
)
def test_a_layer_that_keeps_its_gates_trains_as_on_the_reference(options: dict[str, bool]) -> None:
    program = compiled(gru(**options))
    sessions = [open_session(program, name) for name in ("onnxruntime", "reference")]
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((STEPS, BATCH, FEATURES)).astype(np.float32),
        "labels": rng.standard_normal((1, BATCH, 2)).astype(np.float32),
    }

    losses = [[float(s.step(feeds)["loss"]) for _ in range(4)] for s in sessions]

    assert "GRU" not in {n.op_type for n in rewritten(program)[1].graph}
    assert losses[0][3] < losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    state, expected = (s.get_state() for s in sessions)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_gates_are_computed_once() -> None:
    operators = [n.op_type for n in rewritten(compiled(gru()))[1].graph]

    assert operators.count("Scan") == 2  # one forward, one backward
    assert "Sigmoid" not in operators
    assert "Tanh" not in operators


@pytest.mark.parametrize(
    "model",
    [
        gru(WORTH_IT - 1),
        gru(linear_before_reset=0),
        gru(direction="bidirectional"),
        gru(direction="reverse"),
        gru(clip=1.0),
        gru(activations=["Sigmoid", "Relu"]),
    ],
    ids=["small", "reset first", "bidirectional", "reverse", "clip", "activations"],
)
def test_other_layers_stay_as_they_are(model: onnx.ModelProto) -> None:
    assert not rewritten(compiled(model))[0]


def test_a_layer_that_only_runs_forward_stays_as_it_is() -> None:
    model = onward.make_trainable(gru(), loss="mse", optimizer=onward.SGD(0.1), train=["V"])

    assert not rewritten(onward.compile(model))[0]
