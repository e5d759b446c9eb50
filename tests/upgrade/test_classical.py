"""The linear models and preparations of ai.onnx.ml as plain operators: the numbers of ONNX Runtime, and they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onward
from onward.upgrade.microsoft import decompose_microsoft

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(5, 4)).astype(np.float32)
HOLES = np.where(RANDOM.random((5, 4)) < 0.4, np.nan, X).astype(np.float32)
WEIGHTS = [float(v) for v in RANDOM.normal(size=12)]
THREE = {"coefficients": WEIGHTS, "intercepts": [0.1, -0.2, 0.3]}
FLOAT, INT, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING

# name: operator, inputs, attributes, types of the outputs
CASES: dict[str, tuple[str, list[np.ndarray], dict[str, Any], list[int]]] = {
    "regressor": ("LinearRegressor", [X], {"coefficients": WEIGHTS[:4], "intercepts": [0.5]}, [FLOAT]),
    "regressor of three": ("LinearRegressor", [X], {**THREE, "targets": 3}, [FLOAT]),
    "regressor without intercepts": ("LinearRegressor", [X], {"coefficients": WEIGHTS[:4]}, [FLOAT]),
    "classifier": ("LinearClassifier", [X], {**THREE, "classlabels_ints": [7, 3, 5]}, [INT, FLOAT]),
    "classifier softmax": (
        "LinearClassifier", [X], {**THREE, "classlabels_ints": [0, 1, 2], "post_transform": "SOFTMAX"}, [INT, FLOAT]),
    "classifier of two, logistic": (
        "LinearClassifier", [X], {"coefficients": [*WEIGHTS[:4], *(-v for v in WEIGHTS[:4])], "intercepts": [0.1, -0.1],
                                  "classlabels_ints": [0, 1], "post_transform": "LOGISTIC", "multi_class": 1},
        [INT, FLOAT]),
    "classifier of words": (
        "LinearClassifier", [X], {**THREE, "classlabels_strings": ["a", "b", "c"]}, [TEXT, FLOAT]),
    "scaler": ("Scaler", [X], {"offset": WEIGHTS[:4], "scale": WEIGHTS[4:8]}, [FLOAT]),
    "scaler of one number": ("Scaler", [X], {"offset": [0.5], "scale": [2.0]}, [FLOAT]),
    "scaler of integers": (
        "Scaler", [np.arange(20).reshape(5, 4)], {"offset": WEIGHTS[:4], "scale": WEIGHTS[4:8]}, [FLOAT]),
    "L1": ("Normalizer", [X], {"norm": "L1"}, [FLOAT]),
    "L2": ("Normalizer", [np.vstack([X, np.zeros((1, 4), np.float32)])], {"norm": "L2"}, [FLOAT]),
    "MAX": ("Normalizer", [X], {"norm": "MAX"}, [FLOAT]),
    "imputer": (
        "Imputer", [HOLES], {"imputed_value_floats": WEIGHTS[:4], "replaced_value_float": float("nan")}, [FLOAT]),
    "imputer of one number": (
        "Imputer", [np.round(X)], {"imputed_value_floats": [9.0], "replaced_value_float": 0.0}, [FLOAT]),
    "vectorizer": ("FeatureVectorizer", [X, X[:, :2]], {"inputdimensions": [4, 2]}, [FLOAT]),
    "columns": ("ArrayFeatureExtractor", [X, np.array([2, 0])], {}, [FLOAT]),
}  # fmt: skip


def model_of(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    op_type, arrays, attributes, types = CASES[name]
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    outputs = [f"y{i}" for i in range(len(types))]
    graph = helper.make_graph(
        [helper.make_node(op_type, list(feeds), outputs, name="it", domain="ai.onnx.ml", **attributes)],
        "net",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), ["N", *a.shape[1:]] if a.ndim > 1 else a.shape
            )
            for n, a in feeds.items()
        ],
        [
            helper.make_tensor_value_info(n, t, ["N", "M"] if t == FLOAT else ["N"])
            for n, t in zip(outputs, types, strict=True)
        ],
    )
    imports = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("name", CASES)
def test_the_plain_operators_give_the_numbers_of_onnxruntime(name: str) -> None:
    proto, feeds = model_of(name)
    model = ir.serde.deserialize_model(proto)

    assert decompose_microsoft(model)

    plain = ir.serde.serialize_model(model)
    assert [i.domain for i in plain.opset_import] == [""]
    for actual, expected in zip(run(plain, feeds), run(proto, feeds), strict=True):
        if expected.dtype == np.float32:
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        else:
            assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["regressor of three", "classifier of words"])
def test_a_linear_model_needs_no_rank(name: str) -> None:
    """Behind a vectorizer of text nothing tells the rank, and the coefficients tell the width of a row."""
    proto, feeds = model_of(name)
    proto.graph.node.insert(0, helper.make_node("Reshape", ["x0", "shape"], ["open"]))
    proto.graph.node[1].input[0] = "open"
    proto.graph.input.append(helper.make_tensor_value_info("shape", INT, ["R"]))
    model = ir.serde.deserialize_model(proto)

    assert decompose_microsoft(model)

    plain = ir.serde.serialize_model(model)
    for shape, rows in (([5, 4], 5), ([4], 1)):
        given = {"x0": feeds["x0"][:rows], "shape": np.array(shape)}
        np.testing.assert_allclose(run(plain, given)[-1], run(proto, given)[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["regressor of three", "classifier softmax"])
def test_the_weights_of_a_linear_model_are_trained(name: str) -> None:
    proto, feeds = model_of(name)
    output = proto.graph.output[-1].name

    model = onward.make_trainable(proto, loss="mse", output=output, optimizer=onward.SGD(0.1))
    trainer = onward.Trainer(model)
    batch = {**feeds, model.targets[0]: np.zeros((5, 3), np.float32)}
    losses = [float(trainer.step(batch)["loss"]) for _ in range(3)]

    assert list(model.parameters) == ["it/coefficients", "it/intercepts"]
    assert losses[2] < losses[1] < losses[0]
    assert [o.name for o in trainer.to_inference().graph.output] == [o.name for o in proto.graph.output]


def test_the_numbers_that_prepare_the_input_are_trained_only_by_name(tmp_path: Path) -> None:
    scaler = helper.make_node(
        "Scaler", ["x"], ["s"], "scaler", domain="ai.onnx.ml", offset=WEIGHTS[:4], scale=WEIGHTS[:4]
    )  # equal numbers, and yet two weights
    proto, _ = model_of("regressor")
    proto.graph.node[0].input[0] = "s"
    proto.graph.input[0].name = "x"
    proto.graph.node.insert(0, scaler)
    onnx.save(proto, tmp_path / "net.onnx")

    usual = onward.make_trainable(tmp_path / "net.onnx", loss="mse", optimizer="sgd")
    named = onward.make_trainable(tmp_path / "net.onnx", loss="mse", optimizer="sgd", train="scaler/scale")

    assert list(usual.parameters) == ["it/coefficients", "it/intercepts"]
    assert list(named.parameters) == ["scaler/scale"]
    left = onward.doctor(tmp_path / "net.onnx").left
    reason = "it prepares the input, as Scaler did; name it in `train` if it is to be learned"
    assert left == {"scaler/offset": reason, "scaler/scale": reason}


def test_an_operator_set_may_be_imported_twice_in_the_same_version() -> None:
    """surfaces-onnx-files: onnxmltools wrote `ai.onnx` twice. ONNX Runtime runs it."""
    proto, feeds = model_of("regressor")
    proto.opset_import.append(helper.make_opsetid("", 18))
    assert run(proto, feeds)[0].shape == (5, 1)

    report = onward.check(proto)

    assert (report.ok, report.codes) == (True, ("C139",))
    assert onward.make_trainable(proto, loss="mse", optimizer="sgd").parameters

    proto.opset_import[-1].version = 17
    assert not onward.check(proto).ok
    with pytest.raises(onward.OnwardError, match="imported twice"):
        onward.load(proto)
