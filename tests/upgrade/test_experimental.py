"""Experimental operators of ONNX 1.0 to 1.4, which files of 2018 have and ONNX Runtime still runs: it is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward

X = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(np.float32)
OPERATORS: list[tuple[str, dict[str, Any]]] = [
    ("Affine", {"alpha": 2.0, "beta": 0.5}),
    ("Scale", {"scale": 3.0}),
    ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}),
    ("ScaledTanh", {"alpha": 1.5, "beta": 0.7}),
    ("ParametricSoftplus", {"alpha": 1.5, "beta": 0.7}),
    ("Crop", {"border": [1, 2, 1, 0]}),
    ("Crop", {"border": [1, 2, 0, 0], "scale": [2, 3]}),
    ("MeanVarianceNormalization", {"across_channels": 1, "normalize_variance": 1}),
    ("MeanVarianceNormalization", {"across_channels": 0, "normalize_variance": 0}),
    ("MeanVarianceNormalization", {}),
    ("ThresholdedRelu", {"alpha": 0.3}),
    ("LayerNormalization", {}),
    ("DynamicSlice", {}),
]
_MORE = {
    "LayerNormalization": {"scale": np.linspace(1, 2, 5, dtype=np.float32)},
    "DynamicSlice": {"starts": np.array([1, 0]), "ends": np.array([5, 2]), "axes": np.array([2, 3])},
}


def _file(op_type: str, attributes: dict[str, Any]) -> onnx.ModelProto:
    """A convolution and the operator, as a converter of 2018 writes them."""
    more = _MORE.get(op_type, {})
    tensors = {"w": np.random.default_rng(1).normal(size=(3, 3, 1, 1)).astype(np.float32), **more}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(op_type, ["c", *more], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(v, n) for n, v in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=4)


def _run(model: onnx.ModelProto) -> np.ndarray:
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": X})
    return np.asarray(y)


@pytest.mark.parametrize(("op_type", "attributes"), OPERATORS)
def test_the_tuned_file_computes_what_the_old_one_did(op_type: str, attributes: dict[str, Any]) -> None:
    file = _file(op_type, attributes)

    report = onward.check(file)
    model = onward.make_trainable(file, loss="mse", optimizer=onward.SGD(0.1), train="w")

    assert report.ok, report.errors
    assert "C138" in [w.code for w in report.warnings]
    np.testing.assert_allclose(_run(onward.to_inference(model)), _run(file), rtol=1e-5, atol=1e-6)


def test_a_file_of_2018_trains() -> None:
    file = _file("ParametricSoftplus", {"alpha": 1.5, "beta": 0.7})
    model = onward.make_trainable(file, loss="mse", optimizer=onward.SGD(0.1))
    (target,) = model.targets

    history = onward.Trainer(model).fit([{"x": X, target: np.zeros_like(X)}] * 5, epochs=1, progress=False)

    assert history["loss"][-1] < float((_run(file) ** 2).mean())


def test_the_operator_of_the_standard_stays() -> None:
    graph = helper.make_graph(
        [helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[2, 3])],
        "new",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)],
    )
    model = onward.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))

    from onward.upgrade import normalise

    assert normalise(model) is model
