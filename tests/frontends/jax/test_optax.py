"""Optax optimizers, traced: 50 steps against optax itself. docs/jax.md has the table of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import onward
from frontends.jax.jax_models import Case
from frontends.jax.jax_runs import errors

OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-2),
    "lamb": lambda: optax.lamb(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2),
    "muon": lambda: optax.contrib.muon(1e-2),
    "several": lambda: optax.multi_transform(
        {"a": optax.adam(1e-2), "b": optax.sgd(0.1)}, {"w": "a", "b": "b", "e": "a"}
    ),
    "accumulating": lambda: optax.MultiSteps(optax.adam(1e-2), 3),
}


def case(optimizer: Any, dtype: Any = np.float64) -> Case:
    random = np.random.RandomState(0)
    params = {"w": random.randn(4, 5) * 0.5, "b": np.full(5, 0.1), "e": random.randn(3, 5) * 0.5}
    params = {k: jnp.asarray(v, dtype) for k, v in params.items()}

    def predict(params: Any, batch: Any) -> Any:
        return jnp.tanh(batch["x"] @ params["w"] + params["b"]) @ params["e"].T

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((predict(params, batch) - batch["y"]) ** 2)

    def batch(random: np.random.RandomState, n: int) -> Any:
        return {"x": random.randn(n, 4).astype(dtype), "y": random.randn(n, 3).astype(dtype)}

    return Case(loss, predict, params, None, optimizer, batch)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optax_optimizer_gives_the_numbers_of_optax(name: str):
    found = errors(case(OPTIMIZERS[name]()), before=2, steps=50)

    assert all(error <= 1e-10 for error in found.values()), found


def test_the_noise_of_an_optimizer_is_keyed():
    given = case(optax.chain(optax.add_noise(1.0, 0.0, jax.random.key(0)), optax.sgd(1.0)), np.float32)
    batch = given.batch(np.random.RandomState(0), 6)
    model = onward.from_jax(
        given.loss, given.params, optimizer=given.optimizer, example_batch=batch, predict=given.predict
    )
    moved = []
    for _ in range(2):
        trainer = onward.Trainer(model)
        trainer.step(batch)
        moved.append(trainer.parameters["w"])

    np.testing.assert_array_equal(*moved)  # the same key
    gradient = jax.grad(given.loss)(given.params, batch)["w"]
    noise = np.asarray(given.params["w"]) - moved[0] - np.asarray(gradient)
    assert 0.5 < noise.std() < 1.6
