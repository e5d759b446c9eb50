"""`onward doctor`: what it says of files, and the commands that it recommends."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser

import onward
from autodiff.text_models import parse
from onward.runtime import ask, integer_products_saturate

F32 = np.float32


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(F32)


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    proto = parse(text)
    proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    return proto


CLASSIFIER = """net (float[N, 4] x) => (float[N, 3] p) {
    h = MatMul(x, W)
    z = Add(h, b)
    s = Softmax<axis=1>(z)
    p = Identity(s)
}"""


def classifier() -> onnx.ModelProto:
    return model(CLASSIFIER, W=weight(4, 3), b=weight(3))


def test_a_classifier_is_sent_to_its_logits() -> None:
    found = onward.doctor(classifier())

    assert found.ok
    assert found.runtime.runs
    assert found.runtime.inputs == {"x": [1, 4]}
    assert found.parameters == {"W": 12, "b": 3}
    assert (found.outputs[0].loss, found.outputs[0].on) == ("cross_entropy", "z")


def test_the_command_that_it_recommends_works(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(classifier(), path)
    command = shlex.split(onward.doctor(path).commands[0])

    done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert onward.load(tmp_path / "net_trainable.onnx").targets == ["labels"]


def test_classes_that_an_argmax_found_are_traced_back_to_their_scores() -> None:
    found = onward.doctor(
        model(
            "net (float[N, 4] x) => (int64[N] k) { z = MatMul(x, W) k = ArgMax<axis=1, keepdims=0>(z) }", W=weight(4, 3)
        )
    )

    assert found.ok
    assert (found.outputs[0].loss, found.outputs[0].on) == ("cross_entropy", "z")


def test_the_classes_of_each_position_are_in_the_last_axis(tmp_path: Path) -> None:
    text = "net (float[N, 5, 4] x) => (float[N, 5, 3] p) { z = MatMul(x, W) p = Softmax<axis=-1>(z) }"
    path = tmp_path / "net.onnx"
    onnx.save(model(text, W=weight(4, 3)), path)
    command = shlex.split(onward.doctor(path).commands[0])

    subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, check=True)

    trainer = onward.Trainer(tmp_path / "net_trainable.onnx")
    assert [tuple(t.shape) for t in trainer.program.targets] == [("N", 5)]


def test_probabilities_of_one_sample_are_not_sent_to_a_loss_that_wants_a_batch() -> None:
    found = onward.doctor(model("net (float[4] x) => (float[3] p) { z = MatMul(x, W) p = Softmax(z) }", W=weight(4, 3)))

    assert (found.outputs[0].loss, found.outputs[0].on) == ("mse", "p")


def test_weights_in_external_data(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(classifier(), path, save_as_external_data=True, location="net.bin", size_threshold=0)

    found = onward.doctor(path)

    assert found.runtime.runs
    assert found.parameters == {"W": 12, "b": 3}


def test_a_training_model_can_be_trained_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onward.save(onward.make_trainable(classifier(), loss="cross_entropy", output="z", freeze="b"), path)

    found = onward.doctor(path)

    assert found.ok
    assert (found.parameters, list(found.left)) == ({"W": 12}, ["b"])
    assert found.commands == [f"onward train {shlex.quote(str(path))} --data DATA"]


def test_a_runtime_is_not_fed_more_than_memory_holds(tmp_path: Path) -> None:
    """No size fits, and 16000 in each of three axes would be 30 terabytes."""
    path = tmp_path / "net.onnx"
    onnx.save(model("net (float[N, C, H, W] x) => (float[7, 11] y) { y = Reshape(x, s) }", s=np.array([7, 11])), path)

    answer = ask(str(path))

    assert answer.loads
    assert not answer.runs
    assert "Reshape" in answer.reason


def test_weights_that_no_gradient_reaches_are_left_and_named() -> None:
    text = """net (float[N, 4] x) => (float[N, 3] y) {
        a = MatMul(x, W)
        q = MatMul(x, V)
        k = ArgMax<axis=1, keepdims=1>(q)
        g = Cast<to=1>(k)
        y = Add(a, g)
    }"""

    found = onward.doctor(model(text, W=weight(4, 3), V=weight(4, 2)))

    assert list(found.parameters) == ["W"]
    assert list(found.left) == ["V"]


def test_it_tells_where_the_weights_are() -> None:
    text = """net (float[N, 4] x, bool c) => (float[N, 3] y) {
        k = Constant<value = float[4, 3] {1,2,3,4,5,6,7,8,9,10,11,12}>()
        h = MatMul(x, k)
        y = If(c) <
            then_branch = t () => (float[N, 3] p) { i = Constant<value = float[3] {1,2,3}>() p = Mul(h, i) },
            else_branch = e () => (float[N, 3] q) { q = Identity(h) }
        >
    }"""
    found = onward.doctor(model(text))

    assert {place: (s.tensors, s.numbers) for place, s in found.weights.items()} == {
        "Constant nodes": (1, 12),
        "inside branches, loops and functions": (1, 3),
    }


def test_a_model_that_nothing_can_train_says_what_blocks_it() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Strange", ["h"], ["y"], domain="my.ops")],
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, ["N", 3])],
        [numpy_helper.from_array(weight(4, 3), "W")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)]

    found = onward.doctor(helper.make_model(graph, opset_imports=opsets, ir_version=10))

    assert not found.ok
    assert found.unknown == ["my.ops::Strange"]
    assert not found.runtime.loads
    assert [d.code for d in found.obstacles] == ["D201"]
    assert not found.commands


def test_a_map_of_probabilities_and_the_name_of_a_class_are_traced_back_to_the_scores() -> None:
    """scikit-learn's exporter: a LinearClassifier, whose probabilities go through a Normalizer into a ZipMap."""
    ml = {"domain": "ai.onnx.ml"}
    numbers = {"coefficients": [float(v) for v in weight(12)], "intercepts": [0.1, 0.2, 0.3]}
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "s"], "it", classlabels_ints=[0, 1, 2], **numbers, **ml),
        helper.make_node("Normalizer", ["s"], ["n"], norm="L1", **ml),
        helper.make_node("ZipMap", ["n"], ["map"], classlabels_int64s=[0, 1, 2], **ml),
    ]
    map_type = helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))
    outputs = [
        helper.make_tensor_value_info("label", 7, ["N"]),
        helper.make_value_info("map", helper.make_sequence_type_proto(map_type)),
    ]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", 1, ["N", 4])], outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]

    found = onward.doctor(helper.make_model(graph, opset_imports=opsets, ir_version=8))

    assert [(o.loss, o.on, o.trains) for o in found.outputs] == [("cross_entropy", "s", True), ("mse", "n", True)]
    assert list(found.parameters) == ["it/coefficients", "it/intercepts"]


def test_the_leaves_of_a_tree_train_and_its_splits_stay() -> None:
    """atspm-detector: LightGBM as one TreeEnsemble, whose numbers are tensors in attributes."""
    numbers = {"nodes_splits": [0.5], "leaf_weights": [1.0, -1.0]}
    tree = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], "tree", domain="ai.onnx.ml", n_targets=1, tree_roots=[0], nodes_featureids=[0],
        nodes_modes=numpy_helper.from_array(np.zeros(1, np.uint8)), nodes_truenodeids=[0], nodes_trueleafs=[1],
        nodes_falsenodeids=[1], nodes_falseleafs=[1], leaf_targetids=[0, 0],
        **{k: numpy_helper.from_array(np.array(v, np.float32)) for k, v in numbers.items()},
    )  # fmt: skip
    ends = [[helper.make_tensor_value_info(n, 1, ["N", size])] for n, size in (("x", 3), ("y", 1))]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]

    found = onward.doctor(
        helper.make_model(helper.make_graph([tree], "net", *ends), opset_imports=opsets, ir_version=10)
    )

    assert found.runtime.runs
    assert {place: s.numbers for place, s in found.weights.items()} == {"attributes of nodes": 2}
    assert found.parameters == {"tree/leaf_weights": 2}
    reason = "which way a tree goes has no gradient; the numbers of its leaves have one"
    assert found.left == {"tree/nodes_splits": reason}


def test_a_file_that_takes_the_runtime_down_does_not_take_us_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    answer = ask(str(tmp_path / "no.onnx"))

    assert not answer.loads
    assert "ended with code 1" in answer.reason


def test_code_in_the_folder_of_the_file_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(classifier(), tmp_path / "net.onnx")
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(tmp_path)

    assert ask("net.onnx").runs


def test_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(classifier(), path)
    run = [sys.executable, "-m", "onward", "doctor"]

    text = subprocess.run([*run, str(path)], capture_output=True, text=True, check=False)
    plain = subprocess.run([*run, str(path), "--json"], capture_output=True, text=True, check=False)
    nothing = subprocess.run([*run, str(tmp_path / "absent.onnx")], capture_output=True, text=True, check=False)

    assert text.returncode == 0
    assert "trains    2 weights (15 numbers): `W`, `b`" in text.stdout
    assert "cross_entropy of `z` suits it" in text.stdout
    one_command = f"onward train {path} --data DATA --classes auto --inference tuned.onnx"
    assert one_command in " ".join(text.stdout.split())
    assert json.loads(plain.stdout)["parameters"] == {"W": 12, "b": 3}
    assert nothing.returncode == 2
    assert "Traceback" not in nothing.stderr


def test_products_that_overflow_on_this_processor_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def multiplying(largest: int) -> onnx.ModelProto:
        text = '<ir_version: 9, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 3] y)'
        body = "{ q, s, z = DynamicQuantizeLinear(x) i = MatMulInteger(q, W, z) f = Cast <to = 1> (i) y = Mul(f, s) }"
        made = parser.parse_model(f"{text} {body}")
        made.graph.initializer.append(numpy_helper.from_array(np.full((4, 3), largest, np.int8), "W"))
        return made

    monkeypatch.setattr("onward.diagnosis.examination.integer_products_saturate", lambda: True)
    assert onward.doctor(multiplying(64)).overflowing == []
    assert onward.doctor(multiplying(-65)).overflowing == ["W"]
    monkeypatch.setattr("onward.diagnosis.examination.integer_products_saturate", lambda: False)
    assert onward.doctor(multiplying(-65)).overflowing == []


def test_whether_products_overflow_is_measured() -> None:
    """The probe agrees with a larger product of random integers."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (8, 128)).astype(np.uint8), rng.integers(100, 128, (128, 32)).astype(np.int8)
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (uint8[N, 128] x) => (int32[N, 32] y) { y = MatMulInteger(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    (y,) = session.run(None, {"x": x})

    exact = bool((np.asarray(y) == x.astype(np.int32) @ w.astype(np.int32)).all())
    assert integer_products_saturate() is not exact
