"""The child process of `process.py`: it reads a request from its input and writes one answer."""

from __future__ import annotations

import importlib
import io
import os
import sys
import zipfile
from typing import Any

from onward.errors import ArgumentError, Diagnostic, OnwardError
from onward.reading.worker import receive, send


def main() -> None:
    """Answer one request; an exception that is no refusal ends the process with its traceback."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints does not belong to the answer
    request = receive(sys.stdin.buffer)
    try:
        answer: tuple[Any, ...] = ("captured", *_capture(request))
    except OnwardError as error:
        answer = ("refused", list(error.diagnostics))
    send(answers, answer)


def _capture(request: dict[str, Any]) -> tuple[bytes, list[str]]:
    wide = _is_double(request)
    import jax

    jax.config.update("jax_enable_x64", wide)
    import keras

    keras.config.set_floatx(request.pop("floatx", "float64" if wide else keras.config.floatx()))
    if "epsilon" in request:
        keras.config.set_epsilon(request.pop("epsilon"))
        keras.config.set_image_data_format(request.pop("image_data_format"))
    for module in request.pop("modules", []):
        importlib.import_module(module)  # it registers the user's own classes with Keras
    from onward.frontends.keras.capture import capture
    from onward.frontends.keras.convert import stored_model
    from onward.frontends.keras.files import read_model
    from onward.model import serde

    place = request.pop("place")
    model = read_model(request.pop("data"), place)
    own = stored_model(model, request)
    if own is not None:
        return serde.serialize(serde.to_proto(own)), []
    names = _check_same(model, request.pop("variables", None), place)
    example, origin = request.pop("example"), request.pop("origin", "")
    made, notes = capture(model, example, origin=origin, names=names, **request)
    return serde.serialize(serde.to_proto(made)), notes


def _is_double(request: dict[str, Any]) -> bool:
    """Return whether the model computes in float64, which JAX does only if it is told so."""
    if "floatx" in request:
        types = {array.dtype.name for _, arrays in request["variables"].values() for array in arrays}
        return request["floatx"] == "float64" or "float64" in types
    try:
        with zipfile.ZipFile(io.BytesIO(request["data"])) as archive:
            return b'"float64"' in archive.read("config.json")
    except (KeyError, zipfile.BadZipFile):
        return False  # `read_model` says what is wrong


def _check_same(model: Any, variables: dict[str, Any] | None, place: str) -> dict[str, list[str]] | None:
    """Return the names that the variables had where the model lived, if all of them came along."""
    if variables is None:
        return None
    from onward.frontends.keras.capture import same_values, unique
    from onward.frontends.keras.files import A243
    from onward.frontends.keras.versions import is_seed

    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    ours = {
        "trainable": list(model.trainable_variables),
        "state": [v for v in model.non_trainable_variables if not is_seed(v)],
        "optimizer": [] if model.optimizer is None else list(model.optimizer.variables),
    }
    for kind, (names, arrays) in variables.items():
        if len(names) != len(ours[kind]):
            lost = f"{len(names)} variables became {len(ours[kind])}"
        elif different := same_values(ours[kind], arrays):
            lost = ", ".join(f"`{names[i]}`" for i in different[:5])
        else:
            continue
        raise ArgumentError(
            Diagnostic(
                A243,
                "the model is not the same after it was saved and loaded",
                place=place,
                found=f"{kind}: {lost}",
                hint="a model or layer of your own class must create all its variables in __init__ or build()",
            )
        )
    return unique({kind: names for kind, (names, _) in variables.items()})
