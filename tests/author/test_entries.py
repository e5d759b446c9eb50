"""Several training entries in one file: a GAN's two sides."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from models import perceptron
from onward.errors import ArgumentError


def gan() -> object:
    """Return z -> G -> fake -> D -> score_fake, and real -> D -> score_real, with D's weights used twice."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> object:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * 0.3, name)

    nodes = [
        helper.make_node("MatMul", ["z", "G.weight"], ["g"], name="generate"),
        helper.make_node("Tanh", ["g"], ["fake"], name="squash"),
        helper.make_node("MatMul", ["fake", "D.weight"], ["score_fake"], name="judge_fake"),
        helper.make_node("MatMul", ["real", "D.weight"], ["score_real"], name="judge_real"),
    ]
    graph = helper.make_graph(
        nodes, "gan",
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 3]),
         helper.make_tensor_value_info("real", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 1]) for n in ("score_fake", "score_real")],
        [weight("G.weight", 3, 4), weight("D.weight", 4, 1)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def both_sides() -> onward.TrainingModel:
    def discriminate(op: object, scores: list, labels: object) -> object:
        fake, real = scores
        return op.Add(
            op.ReduceMean(op.Softplus(fake), keepdims=0), op.ReduceMean(op.Softplus(op.Neg(real)), keepdims=0)
        )

    def generate(op: object, score: object, labels: object) -> object:
        return op.ReduceMean(op.Softplus(op.Neg(score)), keepdims=0)

    model = onward.make_trainable(
        gan(), loss=discriminate, output=["score_fake", "score_real"], label=None, train="D.*",
        optimizer=onward.SGD(0.1), entry="discriminator", loss_name="loss_d",
    )  # fmt: skip
    return onward.make_trainable(
        model, loss=generate, output="score_fake", label=None, train="G.*", optimizer=onward.Adam(1e-2),
        entry="generator", loss_name="loss_g",
    )  # fmt: skip


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "z": rng.standard_normal((8, 3)).astype(np.float32),
        "real": rng.standard_normal((8, 4)).astype(np.float32),
    }


def test_two_entries_make_a_valid_file_with_their_own_state() -> None:
    model = both_sides()

    assert onward.check(model, pedantic=True).ok, onward.check(model).render()
    assert [e.name for e in model.entries] == ["discriminator", "generator"]
    assert [set(e.update_binding) & {"D.weight", "G.weight"} for e in model.entries] == [{"D.weight"}, {"G.weight"}]


def test_an_entry_changes_only_its_own_weights() -> None:
    trainer = onward.Trainer(both_sides())
    before = trainer.state

    outputs = trainer.session.step(batch(), entry="generator")

    after = trainer.state
    assert "loss_g" in outputs
    np.testing.assert_array_equal(after["D.weight"], before["D.weight"])
    assert not np.array_equal(after["G.weight"], before["G.weight"])


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_one_iteration_runs_all_entries_in_turn(backend: str) -> None:
    whole, apart = onward.Trainer(both_sides(), backend=backend), onward.Trainer(both_sides(), backend="reference")

    for _ in range(5):
        outputs = whole.session.step(batch())
        for entry in ("discriminator", "generator"):
            expected = apart.session.step(batch(), entry=entry)

    np.testing.assert_allclose(outputs["loss_g"], expected["loss_g"], rtol=1e-5)
    for name, value in whole.state.items():
        np.testing.assert_allclose(value, apart.state[name], rtol=1e-4, atol=1e-6)


def test_two_entries_of_one_name_are_refused() -> None:
    model = onward.make_trainable(gan(), loss="mse", output="score_fake", optimizer="sgd")

    with pytest.raises(ArgumentError, match=r"already has a training entry `train`[\s\S]*entry=\"another name\""):
        onward.make_trainable(model, loss="mse", output="score_fake", optimizer="sgd")


def test_a_second_entry_trains_the_biases_that_the_first_one_reads() -> None:
    first = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer="sgd", train=["W1", "b1"])

    both = onward.make_trainable(
        first, loss="cross_entropy", optimizer="sgd", train=["W0", "b0"], entry="second", loss_name="loss2"
    )

    assert list(both.parameters) == ["W1", "b1", "W0", "b0"]
