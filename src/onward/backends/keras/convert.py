"""The implementation of `to_keras`, which imports Keras."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras

from onward.arguments import check_name, whole
from onward.author.loss_scale import check_unscaled
from onward.backends.keras.model import OnnxModel
from onward.backends.keras.optimizer import OnnxOptimizer
from onward.compiler.compile import named_entries
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model.stash import from_light, to_light
from onward.upgrade import normalise


def convert(model: Any, *, entry: str | None = None, seed: int = 0) -> OnnxModel:
    """Return the Keras model of `model`, compiled if it has training information; see `to_keras`."""
    training = from_light(*to_light(normalise(model)))  # its numbers are those of a file: attributes are float32
    check_unscaled(training, "to_keras")
    entries = named_entries(training)
    if entry is None and len(entries) > 1:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the model has several training entries, and Keras trains with one loss and one optimizer",
                found=", ".join(entries),
                hint="choose one with entry=",
            )
        )
    if entry is not None:
        check_name("entry=", entry, entries)
    chosen = entry or next(iter(entries), "")
    made = OnnxModel(training, chosen, whole("seed", seed, 0), name=_name(training.graph.name or "onnx_model"))
    update = made._onnx.parts.update
    _warn_of_rounding([*made.inputs, *made.trainable_variables])
    if update is not None:
        made.compile(optimizer=OnnxOptimizer(update))
        made.optimizer.build(made.trainable_variables)
    return made


def _warn_of_rounding(values: Sequence[Any]) -> None:
    """Warn if Keras would round the data of a model in float64: `fit` and `predict` convert data to its own type."""
    wide = [v.name for v in values if str(v.dtype) == "float64"]
    if wide and keras.config.floatx() != "float64":
        warnings.warn(
            f"the model computes in float64 (`{wide[0]}`), and Keras is set to {keras.config.floatx()}: it rounds data "
            'and losses before the model sees them; keras.config.set_floatx("float64") lets them be',
            stacklevel=4,
        )


def _name(name: str) -> str:
    allowed = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in name)
    return allowed if allowed and allowed[0].isalnum() else f"n{allowed}"
