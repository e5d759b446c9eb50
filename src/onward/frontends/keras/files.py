"""`.keras` files: read and written in memory, with messages that say how to mend what cannot be saved."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.keras import versions
from onward.frontends.keras.capture import trace_error

A243 = "A243"


def write_model(model: Any) -> bytes:
    """Return the `.keras` file of a model."""
    place = f"model `{model.name}`"
    data: bytes = _guarded(lambda: versions.save(model), f"{place} cannot be saved", place)
    return data


def read_model(data: bytes, place: str) -> Any:
    """Return the model of a `.keras` file, with the state of its optimizer."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = _guarded(lambda: versions.load(data), "the .keras file cannot be loaded", place)
    lost = [str(w.message) for w in said if "Skipping variable loading" in str(w.message) and not _unused(model, w)]
    if lost:
        raise ArgumentError(
            Diagnostic(
                A243,
                "the state of the optimizer cannot be loaded",
                place=place,
                found=lost[0].strip()[:300],
                hint="a model of your own class needs build(), or get_build_config and build_from_config; or load it "
                "with Keras on JAX, call it on a batch, and pass the model",
            )
        )
    return model


def _unused(model: Any, said: warnings.WarningMessage) -> bool:
    """Return whether Keras warns because the optimizer was saved before its first step: then nothing is lost."""
    saved = re.search(r"saved optimizer has (\d+) variables", str(said.message))
    optimizer = model.optimizer
    if saved is None or optimizer is None:
        return False
    return int(saved[1]) == len(type(optimizer).from_config(optimizer.get_config()).variables)


def request_of(model: Any, backend: str) -> dict[str, Any]:
    """Return what the process that captures a model of another backend must know besides the file."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    state = [v for v in model.non_trainable_variables if not versions.is_seed(v)]
    every = {"trainable": model.trainable_variables, "state": state, "optimizer": model.optimizer.variables}
    modules = {str(getattr(thing, "__module__", "")) for thing in versions.custom_objects()}
    return {
        "origin": backend,
        "variables": {k: ([v.path for v in vs], [_numbers(v) for v in vs]) for k, vs in every.items()},
        "modules": sorted(m for m in modules if m and m != "__main__" and not m.startswith("keras.")),
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format(),
    }


def _numbers(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable.value))


def _guarded(action: Callable[[], Any], what: str, place: str) -> Any:
    try:
        return action()
    except Exception as error:  # the code of a layer, and of Keras, may raise any type
        text = str(error)
        if "Exception encountered when calling" in text:
            raise trace_error(error, place) from error
        missing = re.search(r"Could not locate (\w+) '([^']+)'", text)
        line = next((one for one in text.splitlines() if one.strip()), "")
        if missing:
            message = f"{what}: the {missing[1]} `{missing[2]}` is not registered with Keras"
            hint = (
                "decorate it with @keras.saving.register_keras_serializable(), in a module that is imported before "
                "(not in the script itself, if the model lives on another backend than JAX); or pass the model from a "
                "process with KERAS_BACKEND=jax"
            )
        elif "ambda" in text:
            message = f"{what}: it contains a Python lambda, which a file cannot hold safely"
            hint = (
                "replace the Lambda layer by a layer class, or its lambda by a function that is decorated with "
                "@keras.saving.register_keras_serializable()"
            )
        else:
            message, hint = f"{what}: {type(error).__name__}: {line[:300]}", ""
        raise ArgumentError(Diagnostic(A243, message, place=place, hint=hint)) from error
