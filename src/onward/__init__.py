"""Onward: any ONNX model, trainable anywhere ONNX runs.

>>> import onward
>>> model = onward.samples.build("linear")
>>> onward.check(model).ok
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onward.registration import register_with_keras

__version__ = "0.1.0"

if TYPE_CHECKING:
    from onward import augment as augment
    from onward import losses as losses
    from onward import mlir as mlir
    from onward import optimizers as optimizers
    from onward import samples as samples
    from onward import schedules as schedules
    from onward import surgery as surgery
    from onward import testing as testing
    from onward import train as train
    from onward.author import LossScale as LossScale
    from onward.author import Phase as Phase
    from onward.author import make_trainable as make_trainable
    from onward.autodiff.registry import register_gradient as register_gradient
    from onward.autodiff.rules.quantization import straight_through as straight_through
    from onward.check import check as check
    from onward.compiler.compile import compile_model as compile  # noqa: F401  # the public name differs
    from onward.compiler.derivatives import gradient as gradient
    from onward.compiler.derivatives import jvp as jvp
    from onward.compiler.derivatives import lower_gradients as lower_gradients
    from onward.compiler.derivatives import vjp as vjp
    from onward.compiler.program import Program as Program
    from onward.diagnosis import doctor as doctor
    from onward.errors import OnwardError as OnwardError
    from onward.model.inference import to_inference as to_inference
    from onward.model.serde import load as load
    from onward.model.serde import save as save
    from onward.model.training_model import TrainingModel as TrainingModel
    from onward.optimizers import SGD as SGD
    from onward.optimizers import Adagrad as Adagrad
    from onward.optimizers import Adam as Adam
    from onward.optimizers import AdamW as AdamW
    from onward.optimizers import Momentum as Momentum
    from onward.train.trainer import Trainer as Trainer

# Public names and where they live. They are imported on first use, so that `import onward` stays fast and no
# framework is loaded that nobody asked for. tests/contract/test_public_names.py freezes this list.
_PUBLIC = {
    "Adagrad": "onward.optimizers",
    "Adam": "onward.optimizers",
    "AdamW": "onward.optimizers",
    "LossScale": "onward.author",
    "Momentum": "onward.optimizers",
    "OnwardError": "onward.errors",
    "Phase": "onward.author",
    "Program": "onward.compiler.program",
    "SGD": "onward.optimizers",
    "Trainer": "onward.train.trainer",
    "TrainingModel": "onward.model.training_model",
    "check": "onward.check",
    "compile": "onward.compiler.compile:compile_model",
    "doctor": "onward.diagnosis",
    "from_jax": "onward.frontends.jax",
    "from_keras": "onward.frontends.keras",
    "from_tensorflow": "onward.frontends.tensorflow",
    "from_torch": "onward.frontends.torch",
    "gradient": "onward.compiler.derivatives",
    "jvp": "onward.compiler.derivatives",
    "load": "onward.model.serde",
    "lower_gradients": "onward.compiler.derivatives",
    "make_trainable": "onward.author",
    "register_gradient": "onward.autodiff.registry",
    "save": "onward.model.serde",
    "straight_through": "onward.autodiff.rules.quantization",
    "to_inference": "onward.model.inference",
    "to_jax": "onward.backends.jax",
    "to_keras": "onward.backends.keras",
    "to_tensorflow": "onward.backends.tensorflow",
    "to_torch": "onward.backends.torch",
    "vjp": "onward.compiler.derivatives",
}
_MODULES = ("augment", "losses", "mlir", "optimizers", "samples", "schedules", "surgery", "testing", "train")

__all__ = ["__version__", *_MODULES, *_PUBLIC]  # names in a table, checked by the contract test

register_with_keras()  # so that Keras loads files of `to_keras`; it imports nothing


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"onward.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'onward' has no attribute '{name}'")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted(__all__)
