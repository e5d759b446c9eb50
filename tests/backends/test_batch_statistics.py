"""The statistics of a batch are computed once on ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.backends import open_session
from onward.backends.onnxruntime.batch_statistics import ShareBatchStatistics
from onward.model.serde import to_proto
from onward.model.training_model import TrainingModel
from onward.passes.base import Unit


def rewritten(program: onward.Program) -> tuple[bool, ir.Model]:
    """Return whether the pass changes the step, and what it makes of it."""
    unit = Unit(TrainingModel(program.entries["train"].step.copy_model()))
    return ShareBatchStatistics()(unit), unit.model


def network(spatial: tuple[int, ...] = (4, 4), *, twice: bool = False) -> onnx.ModelProto:
    """Return `x` [N, 3, ...] -> MatMul over channels -> BatchNormalization (once or twice) -> mean -> `logits`."""
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.standard_normal((1, 3, *[1] * len(spatial))),
        "scale": rng.uniform(0.5, 1.5, 3),
        "bias": rng.standard_normal(3),
        "mean": rng.standard_normal(3),
        "var": rng.uniform(0.5, 1.5, 3),
    }
    statistics = ["scale", "bias", "mean", "var"]
    nodes = [
        helper.make_node("Mul", ["x", "W"], ["z"], name="weigh"),
        helper.make_node("BatchNormalization", ["z", *statistics], ["n"], name="norm", momentum=0.8, epsilon=1e-3),
        helper.make_node("Tanh", ["n"], ["a"], name="bend"),
    ]
    if twice:
        nodes.append(helper.make_node("BatchNormalization", ["a", *statistics], ["b"], name="norm2", momentum=0.8))
    last = "b" if twice else "a"
    axes = numpy_helper.from_array(np.arange(2, 2 + len(spatial)), "axes")
    head = "ReduceMean" if spatial else "Identity"
    nodes.append(helper.make_node(head, [last, "axes"] if spatial else [last], ["logits"], name="pool",
                                  **({"keepdims": 0} if spatial else {})))  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, *spatial])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])],
        [*(numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()), *([axes] if spatial else [])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("spatial", [(), (6,), (4, 4), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("twice", [False, True])
def test_training_is_that_of_the_reference(spatial: tuple[int, ...], twice: bool) -> None:
    model = onward.make_trainable(network(spatial, twice=twice), loss="cross_entropy", optimizer=onward.SGD(0.3))
    program = onward.compile(model)
    sessions = [open_session(program, name) for name in ("onnxruntime", "reference")]
    rng = np.random.default_rng(1)

    for size in (5, 5, 2, 5):
        feeds = {
            "x": rng.standard_normal((size, 3, *spatial)).astype(np.float32) + 2,
            "labels": rng.integers(0, 3, size),
        }
        losses = [float(s.step(feeds)["loss"]) for s in sessions]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    assert rewritten(program)[0]
    state, expected = (s.get_state() for s in sessions)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_nothing_passes_over_the_input_for_its_statistics() -> None:
    program = onward.compile(onward.make_trainable(network(), loss="cross_entropy", optimizer=onward.SGD(0.3)))

    _, shared = rewritten(program)

    step = program.entries["train"].step.model
    before, after = ([n.op_type for n in m.graph].count("ReduceMean") for m in (step, shared))
    assert before - after == 2
    onnx.checker.check_model(to_proto(TrainingModel(shared)), full_check=True)


def test_a_frozen_normalisation_stays_as_it_is() -> None:
    model = onward.make_trainable(network(), loss="cross_entropy", optimizer=onward.SGD(0.3), batch_norm="freeze")
    program = onward.compile(model)

    assert not rewritten(program)[0]
