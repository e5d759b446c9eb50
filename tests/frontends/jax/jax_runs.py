"""Train one case in JAX, with the user's own loop, and in Onward, and compare."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

import onward
from frontends.jax.jax_models import Case


def named(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of a tree by path."""
    return {
        prefix + jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }


def takes_key(case: Case) -> bool:
    return case.loss.__code__.co_argcount > (2 if case.state is None else 3)


def stepper(case: Case) -> Any:
    """Return the user's own step: params, state, optimizer state, batch -> the same and the loss."""

    def loss(params: Any, state: Any, batch: Any, key: Any) -> Any:
        arguments = (params, batch) if state is None else (params, state, batch)
        result = case.loss(*arguments, key) if takes_key(case) else case.loss(*arguments)
        return (result, None) if state is None else result

    def step(params: Any, state: Any, moments: Any, batch: Any, key: Any) -> Any:
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, state, batch, key)
        updates, moments = case.optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), state, moments, value

    return jax.jit(step)


def feeds(model: Any, batch: Any) -> dict[str, np.ndarray]:
    """Return a batch by the names that the model gave its arrays."""
    names = [*model.inputs, *model.targets]
    found = named(batch)
    return {n: found[n if n in found else n.removeprefix("batch.")] for n in names}


def batches(case: Case, count: int, size: int, last: int, seed: int = 7) -> list[Any]:
    random = np.random.RandomState(seed)
    return [case.batch(random, size if i < count - 1 else last) for i in range(count)]


def errors(
    case: Case, *, before: int, steps: int, size: int = 8, last: int = 3, backend: str = "onnxruntime", **options: Any
) -> dict[str, float]:
    """Return the largest relative error of losses, parameters, state and optimizer state after some steps.

    `before` steps run in JAX first, so that a half-trained model is converted.
    """
    step, key = stepper(case), jax.random.key(1)
    params, state, moments = case.params, case.state, case.optimizer.init(case.params)
    for batch in batches(case, before, size, size, seed=3):
        params, state, moments, _ = step(params, state, moments, batch, key)
    example = batches(case, 1, size, size, seed=5)[0]
    model = onward.from_jax(
        case.loss, params, state, optimizer=case.optimizer, optimizer_state=moments, example_batch=example,
        predict=case.predict, **options,
    )  # fmt: skip
    trainer = onward.Trainer(model, backend=backend)
    losses: list[tuple[float, float]] = []
    for batch in batches(case, steps, size, last):
        params, state, moments, value = step(params, state, moments, batch, key)
        losses.append((float(trainer.step(feeds(model, batch))["loss"]), float(value)))
    ours = trainer.state
    theirs = {"params": named(params), "optimizer": named(moments, "optimizer."), "state": named(state)}
    found = {"losses": max(abs(a - b) / max(abs(b), 1e-3) for a, b in losses)}
    for kind, arrays in theirs.items():
        worst = 0.0
        for name, wanted in arrays.items():
            mine = ours.get(name, ours.get(f"{kind}.{name}"))
            if mine is None:
                continue
            scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-6)
            worst = max(worst, float(np.abs(np.float64(mine) - np.float64(wanted)).max(initial=0.0)) / scale)
        found[kind] = worst
    return found
