"""Running statistics come out right on stock ONNX Runtime, without our backend."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.backends.reference import Evaluator


def normalised() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.standard_normal((4, 3)).astype(np.float32), "scale": np.ones(3, np.float32),
        "bias": np.zeros(3, np.float32), "mean": rng.standard_normal(3).astype(np.float32),
        "var": np.full(3, 2.0, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["z"]),
        helper.make_node("BatchNormalization", ["z", "scale", "bias", "mean", "var"], ["y"], name="bn"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_a_plain_session_gives_the_running_statistics_of_the_reference() -> None:
    model = onward.make_trainable(normalised(), loss="mse", optimizer="sgd", unbiased_variance=True)
    program = onward.compile(model)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((6, 4)).astype(np.float32), "labels": np.zeros((6, 3), np.float32)}
    everything = {**program.state, **program.settings, **feeds}
    feeds = {i.name: np.array(everything[i.name]) for i in program.step.graph.input}
    session = onnxruntime.InferenceSession(program.step.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in program.step.graph.output]

    actual = dict(zip(names, session.run(names, feeds), strict=True))

    expected = Evaluator(program.step).run({i.name: np.array(everything[i.name]) for i in program.step.graph.input})
    for name in ("next/mean", "next/var"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, err_msg=name)
