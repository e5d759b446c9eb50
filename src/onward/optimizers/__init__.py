"""Optimizers, one per file: their settings, and their update in ONNX.

`make_trainable(optimizer=...)` takes one of these, its name (`"adam"`), or a custom one (`Custom`). ONNX's own
operators are emitted if they are exact, and model-local functions of primitive operators otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onward import schedules
from onward.arguments import check_name, check_names
from onward.optimizers.adadelta import Adadelta
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.adamax import Adamax, KerasAdamax
from onward.optimizers.asgd import ASGD
from onward.optimizers.base import FormulaOptimizer, Optimizer, Slot
from onward.optimizers.custom import Custom
from onward.optimizers.keras import KerasAdagrad, KerasSGD
from onward.optimizers.lamb import LAMB
from onward.optimizers.lion import Lion
from onward.optimizers.muon import Muon
from onward.optimizers.nadam import KerasNadam, NAdam
from onward.optimizers.radam import RAdam
from onward.optimizers.rmsprop import KerasRMSprop, RMSprop
from onward.optimizers.rprop import Rprop
from onward.optimizers.sgd import SGD, Momentum
from onward.optimizers.torch_adam import TorchAdam, TorchAdamW

NAMES: dict[str, type[Optimizer]] = {
    "adadelta": Adadelta,
    "adafactor": Adafactor,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamax": Adamax,
    "adamw": AdamW,
    "asgd": ASGD,
    "keras_adagrad": KerasAdagrad,
    "keras_adamax": KerasAdamax,
    "keras_nadam": KerasNadam,
    "keras_rmsprop": KerasRMSprop,
    "keras_sgd": KerasSGD,
    "lamb": LAMB,
    "lion": Lion,
    "momentum": Momentum,
    "muon": Muon,
    "nadam": NAdam,
    "radam": RAdam,
    "rmsprop": RMSprop,
    "rprop": Rprop,
    "sgd": SGD,
    "torch_adam": TorchAdam,
    "torch_adamw": TorchAdamW,
}


def by_name(name: str, **settings: Any) -> Optimizer:
    """Return the optimizer of that name with the given settings; an unknown name or setting is an error.

    >>> by_name("sgd", learning_rate=0.1).rate
    0.1
    """
    check_name("optimizer", name, NAMES)
    known = {f.name for f in dataclasses.fields(NAMES[name]) if f.init}
    check_names("setting", sorted(settings), known, place=f"optimizer `{name}`")
    return NAMES[name](**settings)


def from_description(description: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that `Optimizer.describe()` described, which a file stores as JSON in `onward.optimizer`.

    >>> from onward.schedules import Step
    >>> optimizer = AdamW(Step(0.1, every=5), beta1=0.8, groups={"*.bias": {"weight_decay": 0.0}})
    >>> from_description(optimizer.describe()) == optimizer
    True
    """
    settings = dict(description)
    name = str(settings.pop("name", ""))
    classes = {cls.__name__: cls for cls in NAMES.values()}
    check_name("optimizer", name, classes)
    if isinstance(settings.get("learning_rate"), Mapping):
        settings["learning_rate"] = schedules.from_description(settings["learning_rate"])
    return classes[name](**settings)


__all__ = [
    "ASGD",
    "LAMB",
    "NAMES",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Custom",
    "FormulaOptimizer",
    "KerasAdagrad",
    "KerasAdamax",
    "KerasNadam",
    "KerasRMSprop",
    "KerasSGD",
    "Lion",
    "Momentum",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Slot",
    "TorchAdam",
    "TorchAdamW",
    "by_name",
    "from_description",
]
