"""`onward upgrade`: an old model in today's form."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from onward.model import serde
from onward.upgrade import upgrade as run_upgrade


def upgrade(
    file: Annotated[Path, typer.Argument(help="The ONNX model to convert.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the converted model.")],
    opset: Annotated[
        int | None, typer.Option("--opset", help="The operator set to convert to; by default 18, if it is older.")
    ] = None,
) -> None:
    """Convert ONNX 1.7 training files (GraphCall) and old operator sets: all graphs together, nothing dropped."""
    model = serde.load(file)
    new = run_upgrade(model, opset)
    serde.save(new, output)
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    if new is model:
        console.print(f"`{file}` is up to date (operator set {new.opset}); wrote a copy to `{output}`")
    else:
        console.print(f"wrote `{output}`: operator set {model.opset} → {new.opset}, {_entries(len(new.entries))}")


def _entries(count: int) -> str:
    return "no training entries" if not count else "1 training entry" if count == 1 else f"{count} training entries"
