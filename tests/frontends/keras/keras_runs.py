"""Train one case in Keras, with `train_on_batch`, and in Onward, and compare."""

from __future__ import annotations

from typing import Any

import numpy as np

import onward
from frontends.keras.keras_models import Case
from onward.frontends.keras.capture import variable_names
from onward.frontends.keras.versions import doubles


def feeds(model: Any, x: Any, y: Any, weights: Any = None) -> dict[str, np.ndarray]:
    """Return a batch by the names that the model gave its arrays."""
    inputs = dict(zip(model.inputs, [x], strict=True)) if not isinstance(x, dict) else x
    targets = {f"target.{k}": v for k, v in y.items()} if isinstance(y, dict) else {"target": y}
    return {**inputs, **targets, **({} if weights is None else {"sample_weight": weights})}


def batches(case: Case, count: int, size: int, last: int, seed: int) -> list[Any]:
    random = np.random.RandomState(seed)
    return [case.batch(random, size if i < count - 1 else last) for i in range(count)]


def train(model: Any, x: Any, y: Any, **options: Any) -> float:
    """Return the loss of one step of Keras; without the reset it would be a running mean.

    In float64 Keras computes in float64 throughout, which it does not do by itself: see `versions.doubles`.
    """
    model.reset_metrics()
    with doubles():
        return float(np.ravel(model.train_on_batch(x, y, return_dict=True, **options)["loss"])[0])


def errors(
    case: Case, *, before: int, steps: int = 50, size: int = 8, last: int = 3, **options: Any
) -> dict[str, float]:
    """Return the largest relative error of losses, weights, statistics and optimizer state after `steps` steps.

    `before` steps run in Keras first, so that a half-trained model is converted. `options` are those of the trainer.
    """
    for x, y in batches(case, before, size, size, seed=3):
        train(case.model, x, y)
    model = onward.from_keras(case.model, *batches(case, 1, size, size, seed=5)[0])
    trainer = onward.Trainer(model, **options)
    losses = []
    for x, y in batches(case, steps, size, last, seed=7):
        losses.append((float(trainer.step(feeds(model, x, y))["loss"]), train(case.model, x, y)))
    found = {"losses": max(abs(a - b) / max(abs(b), 1e-3) for a, b in losses)}
    return {**found, **differences(trainer.state, case.model)}


def differences(state: Any, keras_model: Any) -> dict[str, float]:
    """Return the largest relative error of each kind of variable; every variable must be there."""
    found = {}
    names = variable_names(keras_model)
    kinds = {
        "trainable": keras_model.trainable_variables,
        "state": [v for v in keras_model.non_trainable_variables if "seed_generator" not in v.path],
        "optimizer": keras_model.optimizer.variables,
    }
    for kind, variables in kinds.items():
        worst = 0.0
        for name, variable in zip(names[kind], variables, strict=True):
            wanted, mine = np.asarray(variable.value), np.asarray(state[name])
            assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape)
            scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-6)
            worst = max(worst, float(np.abs(np.float64(mine) - np.float64(wanted)).max(initial=0.0)) / scale)
        found[kind] = worst
    return found
