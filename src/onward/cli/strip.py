"""`onward strip FILE -o OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def strip(
    file: Annotated[Path, Argument(help="A training model (.onnx).", show_default=False)],
    output: Annotated[Path, Option("-o", "--output", help="The file to write.", show_default=False)],
    average: Annotated[bool, Option("--average", help="Use the moving average of the weights.")] = False,
    quantize: Annotated[
        bool, Option("--quantize", help="Store the weights that `--dequantize` made floats as integers again.")
    ] = False,
) -> None:
    """Write the inference model alone: the same names and outputs, the current weights, no training information."""
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.model import serde
    from onward.model.inference import to_inference

    model = serde.load(file)
    serde.save(to_inference(model, average=average, quantize=quantize), output)
    removed = f"removed {counted(len(model.entries), 'training entry')}"
    done = removed if model.entries else "it had no training information; the model is as it was"
    stdout_console(soft_wrap=True).print(f"wrote `{output}`: {done}")
