"""`onward convert FILE -o OUT`: a model of another framework becomes a training model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option


def convert(
    file: Annotated[
        Path, Argument(help="A compiled Keras model (.keras), or a folder: a SavedModel.", show_default=False)
    ],
    output: Annotated[Path, Option("-o", "--output", help="Where to write the training model (.onnx).")],
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
    loss: Annotated[str, Option(help="Of a SavedModel: cross_entropy, mse, bce_with_logits, …")] = "cross_entropy",
    optimizer: Annotated[str, Option(help="Of a SavedModel: adam, adamw, sgd, …")] = "adam",
) -> None:
    """Convert a Keras model, with its loss, its optimizer and all their state, to a training model; or a SavedModel.

    Examples:
        onward convert model.keras --example-inputs x.npy --example-targets y.npy -o model.train.onnx
        onward convert saved_model/ --loss mse -o model.train.onnx
    """
    if file.is_dir():
        from onward.cli.console import stdout_console
        from onward.cli.saved_model import convert_saved_model

        inputs, targets = _arrays(example_inputs), _arrays(example_targets)
        said = convert_saved_model(file, output, loss, optimizer, inputs, targets, dynamic)
        stdout_console(soft_wrap=True).print(said)
        return
    os.environ.setdefault("KERAS_BACKEND", "jax")  # this process is ours: no child process is needed
    from onward.cli.console import stdout_console
    from onward.errors import A101, ArgumentError, Diagnostic, counted
    from onward.frontends.keras import from_keras
    from onward.model import serde

    if file.suffix != ".keras":
        raise ArgumentError(
            Diagnostic(
                A101, f"`{file}` cannot be converted", place="file", needed="a .keras file of Keras 3, or a SavedModel"
            )
        )
    model = from_keras(file, _arrays(example_inputs), _arrays(example_targets), dynamic=dynamic)
    serde.save(model, output)
    (entry,) = model.entries
    stdout_console(soft_wrap=True).print(
        f"wrote `{output}`: {counted(len(model.parameters), 'parameter')}, "
        f"{counted(len(entry.update_binding) - len(model.parameters), 'state')} of optimizer and statistics; inputs "
        f"{', '.join(model.inputs)}; targets {', '.join(model.targets) or 'none'}"
    )


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
