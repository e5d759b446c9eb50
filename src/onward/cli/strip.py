"""`onward strip FILE -o OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def strip(
    file: Annotated[Path, typer.Argument(help="A training model (.onnx).", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write it.", show_default=False)],
    ema: Annotated[bool, typer.Option("--ema", help="Take the moving average of the weights.")] = False,
) -> None:
    """Write the inference model alone: the same names and outputs, the current weights, no training information."""
    from rich.console import Console

    from onward.model import serde
    from onward.model.convert import to_inference

    model = serde.load(file)
    serde.save(to_inference(model, ema=ema), output)
    removed = f"removed {len(model.entries)} training entr{'y' if len(model.entries) == 1 else 'ies'}"
    Console(highlight=False, soft_wrap=True).print(f"wrote `{output}`: {removed if model.entries else 'unchanged'}")
