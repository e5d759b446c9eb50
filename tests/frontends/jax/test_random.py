"""Random draws become keyed randomness: the right share, other numbers in each step, never a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import onward
from frontends.jax.jax_models import CASES, cnn
from frontends.jax.jax_runs import feeds
from onward.errors import ArgumentError
from onward.graph.walk import all_nodes

X = np.ones((50, 40), np.float32)


def model_of(draw: Any, state: Any = None) -> onward.TrainingModel:
    """Return a model whose loss is the mean of what `draw(key, x)` makes of x, times the only weight."""

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return (params["w"] * draw(key, batch["x"])).mean()

    return onward.from_jax(
        loss, {"w": jnp.ones(())}, optimizer=optax.sgd(0.0), example_batch={"x": X},
        predict=lambda params, batch: batch["x"] * params["w"],
    )  # fmt: skip


def losses(model: onward.TrainingModel, count: int) -> np.ndarray:
    trainer = onward.Trainer(model)
    return np.array([float(trainer.step({"x": X})["loss"]) for _ in range(count)])


def test_dropout_drops_its_share_and_other_elements_in_each_step():
    found = losses(model_of(lambda key, x: jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0.0)), 20)

    sigma = np.sqrt(0.7 * 0.3 / (X.size * 20))
    assert abs(found.mean() - 0.7) < 4 * sigma
    assert len(set(found)) > 10


def test_a_dropout_is_recognised_so_that_an_evaluation_leaves_it_out():
    case = cnn(np.float32, rate=0.3)
    batch = case.batch(np.random.RandomState(0), 8)
    model = onward.from_jax(
        case.loss, case.params, case.state, optimizer=case.optimizer, example_batch=batch, predict=case.predict
    )

    kinds = [n.op_type for n in all_nodes(model.entries[0].algorithm)]
    assert kinds.count("Dropout") == 1
    assert "RandomUniformLike" not in kinds
    found = onward.Trainer(model).step(feeds(model, batch))["loss"]
    assert np.isfinite(found)


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda key, x: jax.random.normal(key, x.shape) ** 2, 1.0, np.sqrt(2)),
        (lambda key, x: jax.random.uniform(key, x.shape, minval=-1.0, maxval=3.0), 1.0, 4 / np.sqrt(12)),
        (lambda key, x: jax.random.exponential(key, x.shape), 1.0, 1.0),
        (lambda key, x: jax.random.truncated_normal(key, -1.0, 1.0, x.shape) ** 2, 0.2911, 0.2777),
    ],
    ids=["normal", "uniform", "exponential", "truncated normal"],
)
def test_the_numbers_have_the_distribution_of_jax(draw: Any, mean: float, deviation: float):
    found = losses(model_of(draw), 10)

    assert abs(found.mean() - mean) < 4 * deviation / np.sqrt(X.size * 10) + 1e-4


def test_one_key_draws_the_same_numbers_twice():
    found = losses(model_of(lambda key, x: jax.random.normal(key, x.shape) - jax.random.normal(key, x.shape)), 2)

    assert not found.any()


def test_split_keys_draw_other_numbers():
    def draw(key: Any, x: Any) -> Any:
        a, b = jax.random.split(key)
        return (jax.random.normal(a, x.shape) - jax.random.normal(b, x.shape)) ** 2

    found = losses(model_of(draw), 3)

    assert abs(found.mean() - 2.0) < 4 * 2 * np.sqrt(2) / np.sqrt(X.size * 3)


def test_a_scan_draws_other_numbers_in_each_iteration():
    def draw(key: Any, x: Any) -> Any:
        def body(total: Any, k: Any) -> Any:
            return total + jax.random.normal(k, x.shape), None

        return jax.lax.scan(body, jnp.zeros_like(x), jax.random.split(key, 16))[0] ** 2

    found = losses(model_of(draw), 3)

    assert abs(found.mean() - 16) < 4 * 16 * np.sqrt(2) / np.sqrt(X.size * 3)  # 256 if they were the same


def refusal(draw: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        model_of(draw)
    return str(caught.value)


def test_a_draw_that_is_not_known_is_refused():
    text = refusal(lambda key, x: x * jax.random.permutation(key, jnp.arange(40.0)))

    assert "error[A220]: `random_bits` cannot be captured" in text
    assert "not a known draw of jax.random" in text


def test_a_constant_key_is_refused():
    text = refusal(lambda key, x: jax.random.normal(jax.random.key(0), x.shape) * x)

    assert "draws from a constant key, so that JAX would draw the same numbers in every step" in text


def test_a_key_of_the_state_that_does_not_change_is_refused():
    def loss(params: Any, state: Any, batch: Any) -> Any:
        return (params["w"] * jax.random.normal(state["key"], batch["x"].shape)).mean(), state

    with pytest.raises(ArgumentError, match=r"A224.*never changes"):
        onward.from_jax(
            loss, {"w": jnp.ones(())}, {"key": jax.random.key(0)}, optimizer="sgd", example_batch={"x": X},
            predict=lambda params, state, batch: batch["x"] * params["w"],
        )  # fmt: skip


def test_a_key_of_the_state_that_moves_on_is_the_key_of_the_step():
    def loss(params: Any, state: Any, batch: Any) -> Any:
        now, after = jax.random.split(state["key"])
        return (params["w"] * jax.random.normal(now, batch["x"].shape)).mean(), {"key": after}

    model = onward.from_jax(
        loss, {"w": jnp.ones(())}, {"key": jax.random.key(0)}, optimizer="sgd", example_batch={"x": X},
        predict=lambda params, state, batch: batch["x"] * params["w"],
    )  # fmt: skip

    assert "key" not in model.initializers()
    assert len(set(losses(model, 3))) == 3


def test_flax_nnx_keeps_its_keys_in_the_state():
    pytest.importorskip("flax")
    case = CASES["nnx"](np.float32, rate=0.5)
    batch = case.batch(np.random.RandomState(0), 8)

    model = onward.from_jax(
        case.loss, case.params, case.state, optimizer=optax.sgd(0.0), example_batch=batch, predict=case.predict
    )

    trainer = onward.Trainer(model)
    assert len({float(trainer.step(feeds(model, batch))["loss"]) for _ in range(3)}) == 3
