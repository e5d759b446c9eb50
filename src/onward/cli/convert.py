"""`onward convert FILE -o OUT`: a model of Keras becomes a training model, and a training model one of Keras."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

if TYPE_CHECKING:
    from onward.errors import ArgumentError


def convert(
    file: Annotated[
        Path,
        Argument(
            help="A compiled Keras model (.keras), a SavedModel (folder), or a training model (.onnx).",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        Option(
            "-o",
            "--output",
            help="What to write: a training model (.onnx); or of one a Keras model (.keras) or a folder (SavedModel).",
        ),
    ],
    example_inputs: Annotated[
        Path | None,
        Option(help="An example batch (.npy, or .npz with one array per input); by default it is made up."),
    ] = None,
    example_targets: Annotated[
        Path | None, Option(help="The targets of the example (.npy, or .npz with one array per output).")
    ] = None,
    dynamic: Annotated[
        bool, Option("--dynamic/--no-dynamic", help="Take any batch size, or only that of the example.")
    ] = True,
    entry: Annotated[
        str | None, Option(help="Which training entry the Keras model trains with, if the file has several.")
    ] = None,
    loss: Annotated[str, Option(help="Of a SavedModel: cross_entropy, mse, bce_with_logits, …")] = "cross_entropy",
    optimizer: Annotated[str, Option(help="Of a SavedModel: adam, adamw, sgd, …")] = "adam",
) -> None:
    """Convert a Keras model or a SavedModel, with its loss, optimizer and state, to a training model; or the other way.

    Examples:
        onward convert model.keras -o model.train.onnx
        onward convert model.train.onnx -o again.keras
    """
    # A folder may be a checkpoint, too; but nothing is written as .onnx except from a SavedModel.
    saved_model = file.is_dir() and ((file / "saved_model.pb").exists() or output.suffix == ".onnx")
    if saved_model or file.suffix == ".keras":
        if output.suffix != ".onnx":
            raise _refused(output, "output", f"the name of a training model (.onnx), because `{file}` is none")
        if saved_model:
            _from_saved_model(file, output, loss, optimizer, example_inputs, example_targets, dynamic)
        else:
            _from_keras(file, output, example_inputs, example_targets, dynamic)
    elif file.suffix != ".onnx" and not file.is_dir():  # a folder: a checkpoint
        raise _refused(file, "file", "a .keras file of Keras 3, a SavedModel, or a training model (.onnx)")
    elif output.suffix == ".keras":
        _to_keras(file, output, entry)
    elif output.suffix in ("", ".savedmodel") or output.is_dir():
        _to_saved_model(file, output)
    else:
        raise _refused(output, "output", "the name of a .keras file, or of a folder for a SavedModel")


def _from_saved_model(
    file: Path, output: Path, loss: str, optimizer: str, inputs: Path | None, targets: Path | None, dynamic: bool
) -> None:
    from onward.cli.saved_model import convert_saved_model

    _print(convert_saved_model(file, output, loss, optimizer, _arrays(inputs), _arrays(targets), dynamic))


def _from_keras(file: Path, output: Path, inputs: Path | None, targets: Path | None, dynamic: bool) -> None:
    os.environ.setdefault("KERAS_BACKEND", "jax")  # this process is ours: no child process is needed
    from onward.errors import counted
    from onward.frontends.keras import from_keras
    from onward.model import serde

    model = from_keras(file, _arrays(inputs), _arrays(targets), dynamic=dynamic)
    serde.save(model, output)
    (entry,) = model.entries
    _print(
        f"wrote `{output}`: {counted(len(model.parameters), 'parameter')}, "
        f"{counted(len(entry.update_binding) - len(model.parameters), 'state')} of optimizer and statistics; inputs "
        f"{', '.join(model.inputs)}; targets {', '.join(model.targets) or 'none'}"
    )


def _to_keras(file: Path, output: Path, entry: str | None) -> None:
    if not os.environ.get("KERAS_BACKEND"):
        os.environ["KERAS_BACKEND"] = _installed_backend()
    from onward.backends.keras import to_keras
    from onward.errors import counted
    from onward.storage.atomic import write_atomic

    model = to_keras(file, **({} if entry is None else {"entry": entry}))
    from onward.frontends.keras.versions import save

    write_atomic(output, [save(model)])
    trained = model.optimizer is not None
    _print(
        f"wrote `{output}`: {counted(len(model.trainable_variables), 'trainable variable')}, "
        f"{counted(len(model.non_trainable_variables), 'other variable')}; "
        + ("compiled with the loss and the optimizer of the file" if trained else "for inference only")
        + "; load it with keras.saving.load_model, after `import onward`"
    )


def _installed_backend() -> str:
    """Return the first backend of Keras that is installed; `.keras` files are the same for all."""
    import importlib.util

    for name in ("jax", "tensorflow", "torch"):
        if importlib.util.find_spec(name) is not None:
            return name
    return "jax"


def _to_saved_model(file: Path, output: Path) -> None:
    import shutil

    from onward.backends.tensorflow import to_tensorflow
    from onward.errors import counted
    from onward.storage.atomic import TEMP_PREFIX

    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise _refused(output, "output", "a folder that does not exist, or is empty")
    module = to_tensorflow(file)
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = output.parent / f"{TEMP_PREFIX}{os.urandom(6).hex()}"
    try:
        module.save(staging)
        os.replace(staging, output)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)  # the error that matters is being raised
        raise
    trains = bool(module.settings) or "train_step" in module.__dict__
    _print(
        f"wrote `{output}`: a SavedModel with {counted(len(module.state), 'variable')}; signatures serving_default"
        + (", evaluate and train_step" if trains else "")
    )


def _refused(path: Path, place: str, needed: str) -> ArgumentError:
    from onward.errors import A101, ArgumentError, Diagnostic

    what = f"`{path}` cannot be converted" if place == "file" else f"`{path}` cannot be written"
    return ArgumentError(Diagnostic(A101, what, place=place, needed=needed))


def _print(text: str) -> None:
    from onward.cli.console import stdout_console

    stdout_console(soft_wrap=True).print(text)


def _arrays(path: Path | None) -> Any:
    """Return the array of a file, or its arrays by name."""
    if path is None:
        return None
    import numpy as np

    from onward.errors import A101, ArgumentError, Diagnostic

    try:
        found = np.load(path, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else dict(found)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            Diagnostic(A101, f"`{path}` cannot be read: {error}", needed="a .npy or .npz file of numbers")
        ) from error
