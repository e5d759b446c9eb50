"""Every optimizer of Keras, and the options that all of them share. docs/generate_keras.py uses them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from frontends.keras.keras_models import Case, set_type
from frontends.keras.keras_runs import errors

optimizers = keras.optimizers

MADE: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(0.1),
    "SGD(momentum, nesterov, schedule)": lambda: optimizers.SGD(
        optimizers.schedules.CosineDecay(0.05, 40, warmup_target=0.1, warmup_steps=5), momentum=0.9, nesterov=True
    ),
    "SGD(weight_decay)": lambda: optimizers.SGD(0.1, weight_decay=0.01),
    "Adam": lambda: optimizers.Adam(1e-2),
    "Adam(amsgrad)": lambda: optimizers.Adam(1e-2, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(1e-2, weight_decay=0.1),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Adafactor": lambda: optimizers.Adafactor(1e-2),
    "Adamax": lambda: optimizers.Adamax(1e-2),
    "Ftrl": lambda: optimizers.Ftrl(0.1),
    "Lamb": lambda: optimizers.Lamb(1e-2),
    "Lion": lambda: optimizers.Lion(1e-3),
    "Muon": lambda: optimizers.Muon(1e-2),
    "Nadam": lambda: optimizers.Nadam(1e-2),
    "RMSprop": lambda: optimizers.RMSprop(1e-2),
    "RMSprop(centered, momentum)": lambda: optimizers.RMSprop(1e-2, centered=True, momentum=0.9),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(1e-2),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-2), dynamic_growth_steps=5),
    "MultiOptimizer": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(default_optimizer=optimizers.SGD(0.1), optimizer_map={".*bias": optimizers.Adam(1e-2)})
    ),
    "Adam(clipnorm)": lambda: optimizers.Adam(1e-2, clipnorm=0.1),
    "Adam(global_clipnorm)": lambda: optimizers.Adam(1e-2, global_clipnorm=0.1),
    "Adam(clipvalue)": lambda: optimizers.Adam(1e-2, clipvalue=0.01),
    "Adam(use_ema)": lambda: optimizers.Adam(1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7),
    "Adam(gradient_accumulation_steps)": lambda: optimizers.Adam(1e-2, gradient_accumulation_steps=3),
    "Adam(loss_scale_factor)": lambda: optimizers.Adam(1e-2, loss_scale_factor=128.0),
    "SGD(PiecewiseConstantDecay)": lambda: optimizers.SGD(
        optimizers.schedules.PiecewiseConstantDecay([10, 30], [0.1, 0.05, 0.01])
    ),
    "SGD(CosineDecayRestarts)": lambda: optimizers.SGD(optimizers.schedules.CosineDecayRestarts(0.1, 10)),
    "SGD(ExponentialDecay)": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 20, 0.5)),
    "SGD(InverseTimeDecay)": lambda: optimizers.SGD(
        optimizers.schedules.InverseTimeDecay(0.1, 10, 0.5, staircase=True)
    ),
    "SGD(PolynomialDecay)": lambda: optimizers.SGD(optimizers.schedules.PolynomialDecay(0.1, 40, power=2.0)),
}


def classes() -> set[str]:
    """Return the name of every optimizer class of Keras."""
    base = optimizers.Optimizer
    return {
        n
        for n in dir(optimizers)
        if isinstance(getattr(optimizers, n), type) and issubclass(getattr(optimizers, n), base) and n != "Optimizer"
    }


def problem(optimizer: Any) -> Any:
    """Return a small model, compiled with the optimizer."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="tanh"), layers.Dense(2)], name="net")
    model.compile(optimizer=optimizer, loss="mse")
    return model


def compare(name: str, dtype: str, before: int = 3, steps: int = 50) -> dict[str, float]:
    """Return the errors of a half-trained model after some steps; see `keras_runs.errors`."""
    set_type(dtype)
    model = problem(MADE[name]())

    def batch(random: Any, size: int) -> tuple[Any, Any]:
        x = random.normal(size=(size, 4)).astype(dtype)
        return x, x[:, :2] - x[:, 2:]

    return errors(Case(model, batch), before=before, steps=steps)
