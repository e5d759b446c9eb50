"""`to_keras`: convert a training model to a compiled `keras.Model`. Keras is imported on first use."""

from __future__ import annotations

import inspect
from typing import Any

from onward import versions
from onward.arguments import check_names
from onward.errors import require_extra


def to_keras(model: Any, **options: Any) -> Any:
    """Return `model` as a real `keras.Model`, on the backend that Keras runs on, compiled and ready for `fit`.

    Its variables are Keras variables under their ONNX names: parameters are trainable, frozen weights are not, and
    running statistics are state that a call in training mode updates. It is compiled with the loss of the file and with
    the optimizer of the file *in its current state*, so that `fit`, `train_on_batch`, `evaluate` and `predict` go on
    with the file's curve. The optimizer runs the update graph of the file: clipping, accumulation, penalties and
    optimizers of your own are in it. `model.compile(optimizer=..., loss=...)` puts other ones in their place;
    `model.compile(optimizer=model.optimizer, metrics=[...])` only adds metrics.

    The model is saved by `model.save("x.keras")`, and `keras.saving.load_model` loads it in every process that imports
    onward. `onward.from_keras` turns it back into a training model.

    Args:
        model: a `TrainingModel`, a `ModelProto`, or a path.
        options: `entry="name"` chooses the training entry of a model with several. `seed=7` is the key of the dropout
            masks.

    Raises:
        ArgumentError: the model has several training entries and no `entry`, or its step cannot be written as loss,
            gradients and optimizer, which is how Keras trains.
        BackendError: lists all operators that the backend of Keras lacks.
        MissingExtra: keras is not installed.
    """
    versions.check(installed_keras("onward.to_keras"))
    from onward.backends.keras.convert import convert

    check_names("option of `to_keras`", options, list(inspect.signature(convert).parameters)[1:])
    return convert(model, **options)


def installed_keras(purpose: str) -> dict[str, str]:
    """Return the version of Keras for `onward.versions.check`; raise an error that names `purpose` without Keras."""
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name not in ("keras", "tensorflow", "jax", "torch"):
            raise
        extra = "keras" if error.name in ("keras", "jax") else error.name
        raise require_extra(error.name, extra, purpose) from error
    return {"keras": keras.__version__}
