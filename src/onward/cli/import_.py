"""`onward import FILE.mlir -o OUT.onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def import_command(
    file: Annotated[Path, Argument(help="An MLIR text with ONNX operators.", show_default=False)],
    output: Annotated[Path, Option("-o", "--output", help="The ONNX model to write.", show_default=False)],
    function: Annotated[
        str | None,
        Option(
            metavar="NAME", help="The function to read, if there are several and no entry point.", show_default=False
        ),
    ] = None,
) -> None:
    """Read an MLIR text of `onward export`, onnx-mlir or IREE's importer, and write it as an ONNX model.

    Examples:
        onward import net.mlir -o net.train.onnx
        onward import net.mlir --function main_graph -o net.train.onnx
    """
    from onward import mlir
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.model import serde

    proto = mlir.load(file, function=function)
    serde.save(proto, output)
    entries = f", {counted(len(proto.training_info), 'training entry')}" if proto.training_info else ""
    stdout_console(soft_wrap=True).print(f"wrote `{output}`: {counted(len(proto.graph.node), 'node')}{entries}")
