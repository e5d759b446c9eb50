"""`onward export FILE --mlir onnx -o OUT.mlir`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def export(
    file: Annotated[
        Path, Argument(metavar="FILE|DIR", help="An ONNX model, or the directory of a run.", show_default=False)
    ],
    mlir: Annotated[
        str,
        Option(
            "--mlir",
            metavar="DIALECT",
            help="`onnx`: onnx-mlir's dialect, without loss. `torch-onnx`: what IREE and torch-mlir read.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, Option("-o", "--output", help="The file to write.", show_default=False)],
    graph: Annotated[
        str | None,
        Option(
            metavar="GRAPH",
            help="`model` (the whole file; the default of `onnx`), `inference` (that of `torch-onnx`), or compiled: "
            "`step`, `evaluate`, `initialize`.",
            show_default=False,
        ),
    ] = None,
    mlir_level: Annotated[
        str,
        Option(metavar="LEVEL", help="`core` lowers to the core operators (docs/core_operators.md); `any` does not."),
    ] = "any",
    weights: Annotated[
        str | None,
        Option(
            metavar="PLACE",
            help="`inline`, `resource` (at the end of the text), or `external` (a safetensors file beside it).",
            show_default=False,
        ),
    ] = None,
    entry: Annotated[
        str | None, Option(help="The training entry of `step` and `evaluate`, if there are several.")
    ] = None,
) -> None:
    """Write a model as MLIR text, for onnx-mlir, IREE and other compilers; `onward import` reads it back.

    Examples:
        onward export net.train.onnx --mlir onnx -o net.mlir
        onward export net.train.onnx --mlir torch-onnx --graph step -o step.mlir
    """
    from onward import mlir as library
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.mlir.graphs import default_graph

    library.save(file, output, dialect=mlir, graph=graph, level=mlir_level, weights=weights, entry=entry)
    what = graph or default_graph(mlir)
    written = f"wrote `{output}`: {counted(output.stat().st_size, 'byte')}"
    written += ", the whole model" if what == "model" else f", the {what} graph"
    if weights == "external" and output.with_suffix(".safetensors").exists():
        written += f", weights in `{output.with_suffix('.safetensors')}`"
    stdout_console(soft_wrap=True).print(written)
