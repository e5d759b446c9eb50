"""JAX → file → JAX: `to_jax` of a captured model, under jit, has the loss and the gradients of the user's function."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("optax")

import onward
from frontends.jax.jax_models import CASES, Case
from frontends.jax.jax_runs import feeds, named, takes_key
from whole import sample


@pytest.mark.parametrize("name", sample(["cnn", "lstm", "transformer"], ["cnn"]))
def test_a_captured_model_returns_to_jax(name: str):
    case: Case = CASES[name](np.float32)
    random = np.random.RandomState(0)
    model = onward.from_jax(
        case.loss, case.params, case.state, optimizer=case.optimizer, example_batch=case.batch(random, 8),
        predict=case.predict,
    )  # fmt: skip
    batch = case.batch(random, 5)

    fn, params, state = onward.to_jax(model)
    (loss, new), gradients = jax.jit(jax.value_and_grad(fn, has_aux=True))(params, state, feeds(model, batch))

    given = (case.params, batch) if case.state is None else (case.params, case.state, batch)
    given = (*given, jax.random.key(0)) if takes_key(case) else given
    wanted = jax.value_and_grad(case.loss, has_aux=case.state is not None)(*given)
    (value, after), slopes = wanted if case.state is not None else ((wanted[0], {}), wanted[1])
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    for path, slope in named(slopes).items():
        found = gradients[path if path in gradients else f"params.{path}"]
        np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-5 * max(np.abs(slope).max(), 1e-3), err_msg=path)
    for path, array in named(after).items():
        np.testing.assert_allclose(new[path], array, rtol=1e-5, atol=1e-6, err_msg=path)
