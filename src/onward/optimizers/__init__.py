"""Optimizers, one per file, as settings and their update in ONNX.

`make_trainable(optimizer=...)` takes one of these, its name (`"adam"`), or one of your own (`Custom`).
"""

from __future__ import annotations

from typing import Any

from onward.errors import unknown_name
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.base import FormulaOptimizer, Optimizer, Slot
from onward.optimizers.sgd import SGD, Momentum

NAMES: dict[str, type[Optimizer]] = {
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "momentum": Momentum,
    "sgd": SGD,
}


def by_name(name: str, **settings: Any) -> Optimizer:
    """Return the optimizer of that name with the given settings.

    >>> by_name("sgd", learning_rate=0.1).rate
    0.1
    """
    if name not in NAMES:
        raise unknown_name("optimizer", name, NAMES)
    return NAMES[name]().with_settings({}) if not settings else NAMES[name](**settings)


__all__ = [
    "NAMES",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "FormulaOptimizer",
    "Momentum",
    "Optimizer",
    "Slot",
    "by_name",
]
