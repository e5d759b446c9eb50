"""`from_keras`: convert a compiled Keras model, with its optimizer and all their state, to a training model.

Keras itself is imported only if the user has done so, or if its backend is known to be JAX: the first import fixes the
backend of a process. Otherwise a child process captures the model.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.errors import A101, ArgumentError, Diagnostic, require_extra
from onward.model.training_model import TrainingModel


def from_keras(
    model: Any,
    example_inputs: Any = None,
    example_targets: Any = None,
    *,
    sample_weight: Any = False,
    class_weight: Mapping[int, float] | None = None,
    dynamic: bool = True,
    loss_name: str = "loss",
    entry: str = "train",
) -> TrainingModel:
    """Return a compiled Keras model and its optimizer, as they are now, as a `TrainingModel`.

    The model's forward pass, its loss and its optimizer's step are traced through JAX, so that every layer, loss,
    regularizer, schedule and optimizer is captured as Keras computes it. A model on the TensorFlow or torch backend is
    captured by a child process with Keras on JAX. Variables keep their paths, such as `sequential/dense/kernel`. Before
    the model is returned, inference, loss, gradients, statistics and the optimizer's update are compared with Keras, on
    the example and on a batch of another size.

    Args:
        model: a compiled and built `keras.Model`, or the path of a `.keras` file.
        example_inputs: a batch, as the model takes it; by default it is made up from the shapes of the model's inputs.
        example_targets: the targets of that batch, as `train_on_batch` takes them; by default they are made up.
        sample_weight: True adds the weights of the samples to the targets, named `sample_weight`; an array, or a tree
            of arrays as `train_on_batch` takes it, is their example.
        class_weight: the weight of each class, as `fit` takes it; it becomes part of the loss.
        dynamic: True makes the first dimension of the arrays of the batch a free batch size, False fixes all shapes.
        loss_name: the name of the loss output.
        entry: the name of the training entry.

    Raises:
        ArgumentError: the model cannot be captured, or gives other numbers in the file.
        MissingExtra: keras or jax is not installed.
    """
    for package in ("keras", "jax"):
        if sys.modules.get(package) is None and importlib.util.find_spec(package) is None:
            raise require_extra(package, "keras", "onward.from_keras")
    options = {
        "sample_weight": sample_weight,
        "class_weight": None if class_weight is None else dict(class_weight),
        "dynamic": dynamic,
        "loss_name": loss_name,
        "entry": entry,
    }
    example = (example_inputs, example_targets)
    if isinstance(model, str | os.PathLike):
        return _told(*_from_file(_readable(Path(model)), example, options))
    return _told(*_from_model(model, example, options))


def _from_file(path: Path, example: tuple[Any, Any], options: dict[str, Any]) -> tuple[TrainingModel, list[str]]:
    if "keras" not in sys.modules and os.environ.get("KERAS_BACKEND") != "jax":
        from onward.frontends.keras.process import capture_elsewhere

        return capture_elsewhere(path.read_bytes(), str(path), example, options)
    import keras

    if keras.backend.backend() != "jax":
        from onward.frontends.keras.process import capture_elsewhere

        return capture_elsewhere(path.read_bytes(), str(path), example, options)
    from onward.frontends.keras.capture import capture
    from onward.frontends.keras.files import read_model

    model = read_model(path.read_bytes(), str(path))
    own = stored_model(model, options)
    return (own, []) if own is not None else capture(model, example, origin="", **options)


def _from_model(model: Any, example: tuple[Any, Any], options: dict[str, Any]) -> tuple[TrainingModel, list[str]]:
    import keras

    if not isinstance(model, keras.Model):
        known = isinstance(model, keras.layers.Layer)
        raise ArgumentError(
            Diagnostic(
                A101,
                "from_keras takes a model of Keras 3",
                place="model",
                found=f"a {type(model).__module__}.{type(model).__qualname__}",
                needed="a compiled keras.Model, or the path of a .keras file",
                hint="wrap the layer: keras.Sequential([keras.Input(...), layer]), and compile it" if known else "",
            )
        )
    own = stored_model(model, options)
    if own is not None:
        return own, []
    backend = keras.backend.backend()
    if backend == "jax":
        from onward.frontends.keras.capture import capture

        return capture(model, example, origin="jax", **options)
    from onward.frontends.keras.checks import check_model
    from onward.frontends.keras.files import request_of, write_model
    from onward.frontends.keras.process import capture_elsewhere

    check_model(model)
    asked = {**options, **request_of(model, backend)}  # it builds the optimizer, so that the file holds its state
    return capture_elsewhere(write_model(model), f"model `{model.name}`", example, asked)


def stored_model(model: Any, options: Mapping[str, Any]) -> TrainingModel | None:
    """Return the file of a model that `to_keras` made and that still has its loss and optimizer; else None.

    Raises:
        ArgumentError: `options` ask for another loss than that of the file.
    """
    if "onward.backends.keras.model" not in sys.modules:
        return None
    from onward.backends.keras.model import OnnxModel

    if not isinstance(model, OnnxModel) or not model.trains_as_in_the_file:
        return None
    if options["sample_weight"] is not False or options["class_weight"] is not None:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the model has the loss of its file, which takes no weights of samples or classes",
                place="sample_weight=" if options["class_weight"] is None else "class_weight=",
                hint="compile the model with a loss of Keras first",
            )
        )
    return model.training_model()


def _readable(path: Path) -> Path:
    if path.suffix != ".keras" or not path.is_file():
        suffix = path.suffix in (".h5", ".hdf5")
        raise ArgumentError(
            Diagnostic(
                A101,
                f"`{path}` is not a file of Keras 3" if path.exists() else f"there is no file `{path}`",
                place="model",
                needed="the path of a .keras file",
                hint="load it with keras.models.load_model, compile it, and pass the model" if suffix else "",
            )
        )
    return path


def _told(model: TrainingModel, notes: list[str]) -> TrainingModel:
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return model
