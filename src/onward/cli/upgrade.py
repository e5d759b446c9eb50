"""`onward upgrade`: convert an old model to current operators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def upgrade(
    file: Annotated[Path, Argument(help="The ONNX model to convert.", show_default=False)],
    output: Annotated[Path, Option("-o", "--output", help="Where to write the converted model.")],
    opset: Annotated[
        int | None, Option("--opset", help="The operator set to convert to (default: 18, for older models).")
    ] = None,
) -> None:
    """Convert ONNX 1.7 training files (GraphCall) and old operator sets: all graphs together, nothing dropped.

    Examples:
        onward upgrade net.onnx -o net.new.onnx
        onward upgrade net.onnx --opset 21 -o net.21.onnx
    """
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.model import serde
    from onward.upgrade import upgrade as run_upgrade

    model = serde.load(file)
    new = run_upgrade(model, opset)
    serde.save(new, output)
    console = stdout_console(soft_wrap=True)
    if new is model:
        console.print(f"`{file}` is up to date (operator set {new.opset}); wrote a copy to `{output}`")
    else:
        console.print(
            f"wrote `{output}`: operator set {model.opset} → {new.opset}, {counted(len(new.entries), 'training entry')}"
        )
