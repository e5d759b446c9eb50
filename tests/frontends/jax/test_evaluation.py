"""The loss of an evaluation: with running statistics where the user gives a function for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import onward
from frontends.jax.jax_models import Case, cnn, cross_entropy
from frontends.jax.jax_runs import feeds
from onward.errors import ArgumentError

CASE: Case = cnn(np.float32, rate=0.5)
BATCH = CASE.batch(np.random.RandomState(0), 7)
STATE = {"mean": jnp.full(4, 0.3), "var": jnp.full(4, 20.0)}  # far from those of the batch


def evaluate(params: Any, state: Any, batch: Any) -> Any:
    return cross_entropy(CASE.predict(params, state, batch), batch["label"])


def convert(**options: Any) -> onward.TrainingModel:
    return onward.from_jax(
        CASE.loss, CASE.params, STATE, optimizer=CASE.optimizer, example_batch=BATCH, predict=CASE.predict, **options
    )


@pytest.fixture(scope="module")
def model() -> onward.TrainingModel:
    return convert(evaluate=evaluate)


@pytest.mark.parametrize("size", [7, 3])
def test_an_evaluation_uses_the_running_statistics(model: onward.TrainingModel, size: int, tmp_path: Path):
    """Of a file, too, and whatever the sizes of the batches are."""
    onward.save(model, tmp_path / "cnn.train.onnx")
    wanted = float(evaluate(CASE.params, STATE, BATCH))

    found = onward.Trainer(tmp_path / "cnn.train.onnx").evaluate(BATCH["image"], BATCH["label"], batch_size=size)

    np.testing.assert_allclose(found["loss"], wanted, rtol=1e-5)


def test_without_a_function_it_uses_the_statistics_of_the_batch():
    plain = cnn(np.float32)  # the same without dropout, which an evaluation leaves out
    wanted, _ = plain.loss(CASE.params, STATE, BATCH, None)

    found = onward.Trainer(convert()).evaluate(BATCH["image"], BATCH["label"], batch_size=7)

    np.testing.assert_allclose(found["loss"], wanted, rtol=1e-5)
    assert abs(float(wanted) - float(evaluate(CASE.params, STATE, BATCH))) > 0.05


def test_the_step_is_the_same_with_and_without(model: onward.TrainingModel):
    kinds = [sorted(n.op_type for n in onward.compile(m).first.step.model.graph) for m in (model, convert())]

    assert kinds[0] == kinds[1]
    trainers = [onward.Trainer(m) for m in (model, convert())]
    for _ in range(3):
        first, second = (t.step(feeds(model, BATCH))["loss"] for t in trainers)
        assert first == second
    after = trainers[0].state
    moved = {"mean": after["mean"], "var": after["var"]}
    wanted = float(evaluate({n: after[n] for n in CASE.params}, moved, BATCH))
    found = trainers[0].evaluate(BATCH["image"], BATCH["label"])
    np.testing.assert_allclose(found["loss"], wanted, rtol=1e-4)


def test_the_training_forward_keeps_the_statistics_of_the_batch(model: onward.TrainingModel):
    """The nodes of the evaluation are like those of inference; they must not stand for those of training."""
    torch = pytest.importorskip("torch")
    module, _ = onward.to_torch(model)
    module.train()
    before = {n: v.clone() for n, v in module.state_dict().items() if n.endswith(("mean", "var"))}

    module(torch.from_numpy(BATCH["image"]))

    assert all(not torch.equal(v, before[n]) for n, v in module.state_dict().items() if n in before)


def refusal(function: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        convert(evaluate=function)
    return str(caught.value)


def test_an_evaluation_that_draws_is_refused():
    def noisy(params: Any, state: Any, batch: Any) -> Any:
        return evaluate(params, state, batch) + jax.random.normal(jax.random.key(params["bias"][0].astype("int32")), ())

    text = refusal(noisy)

    assert "error[A224]: an evaluation draws random numbers" in text
    assert "noisy" in text


def test_an_evaluation_that_is_not_a_loss_is_refused():
    assert "error[A101]: evaluate= is not a function" in refusal(3)
    assert "error[A201]: the loss is not one number" in refusal(CASE.predict)
    assert "it is called as evaluate(params, state, batch)" in refusal(lambda params, batch: 0.0)
