"""Sequences of known length become tensors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import onward
from onward.backends import open_session

SPLITS = {
    "by sizes": (helper.make_node("SplitToSequence", ["x", "sizes"], ["s"], axis=-1), [2, 4]),
    "in equal parts": (helper.make_node("SplitToSequence", ["x", "each"], ["s"], axis=-1), [4, 2]),
    "one by one": (helper.make_node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0), [1] * 6),
}


def model(split: onnx.NodeProto, second: int) -> onward.TrainingModel:
    """A model that scales its input by W, splits it, and takes element 0 and the one at `second`."""
    nodes = [
        helper.make_node("Mul", ["input", "W"], ["x"]),
        split,
        helper.make_node("SequenceAt", ["s", "first"], ["a"]),
        helper.make_node("SequenceAt", ["s", "second"], ["b"]),
        helper.make_node("Tanh", ["a"], ["a2"]),
        helper.make_node("Exp", ["b"], ["b2"]),
        helper.make_node("ReduceSum", ["a2", "axes"], ["a3"], keepdims=0),
        helper.make_node("ReduceSum", ["b2", "axes"], ["b3"], keepdims=0),
        helper.make_node("Sub", ["a3", "b3"], ["y"]),
    ]
    constants = {"sizes": [2, 4], "each": 4, "first": 0, "second": second, "axes": [1]}
    if split.attribute[-1].name == "keepdims":
        nodes[6:8] = [helper.make_node("Identity", [f"{n}2"], [f"{n}3"]) for n in "ab"]
    initializers = [onnx.numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
    initializers.append(onnx.numpy_helper.from_array(np.linspace(-1, 1, 6, dtype=np.float32), "W"))
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("input", 1, ["N", 6])],
        [helper.make_tensor_value_info("y", 1, ["N"])],
        initializers,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1), train=["W"])


def kinds(proto: onnx.ModelProto) -> set[str]:
    return {n.op_type for n in proto.graph.node}


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_into_known_parts_trains_without_sequences(name: str) -> None:
    split, sizes = SPLITS[name]
    trainable = model(split, len(sizes) - 1)
    batch = {"input": np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)}
    batch[trainable.targets[0]] = np.ones(3, np.float32)
    expected = onward.Trainer(trainable, backend="torch", compile=False)

    program = onward.compile(trainable)

    step = program.step
    assert not {k for k in kinds(step) | kinds(program.infer) if "Sequence" in k}
    session = open_session(program, "reference")
    for _ in range(3):
        np.testing.assert_allclose(session.step(batch)["loss"], expected.step(batch)["loss"], rtol=1e-5)
    np.testing.assert_allclose(session.get_state()["W"], expected.state["W"], rtol=1e-5)


def test_a_split_whose_number_of_parts_is_not_known_stays_a_sequence() -> None:
    trainable = model(helper.make_node("SplitToSequence", ["x", "each"], ["s"], axis=0), -1)

    program = onward.compile(trainable)

    assert "SplitToSequence" in kinds(program.infer)
