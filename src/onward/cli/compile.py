"""`onward compile FILE -o DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compile_command(
    file: Annotated[Path, typer.Argument(help="A training model (.onnx).", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The directory to write.", show_default=False)],
    target_opset: Annotated[
        int | None, typer.Option(help="The opset of the graphs (default: the lowest they need).")
    ] = None,
    target_ir: Annotated[int | None, typer.Option(help="The IR version of the graphs (default: the lowest).")] = None,
    seed: Annotated[int, typer.Option(help="The initial random key.")] = 0,
    split: Annotated[
        bool,
        typer.Option("--split", help="Also write gradient and update as two graphs (accumulation, federation)."),
    ] = False,
) -> None:
    """Compile a training model to plain ONNX graphs that any runtime can train with."""
    from rich.table import Table

    from onward.cli.console import stdout_console
    from onward.compiler.compile import compile_model
    from onward.errors import counted

    program = compile_model(file, target_opset=target_opset, target_ir=target_ir, seed=seed, split=split)
    program.save(output)
    table = Table(title=f"{file.name} → {output}/", title_justify="left", box=None, pad_edge=False)
    for heading in ("graph", "nodes", "opset", "inputs", "outputs"):
        table.add_column(heading, justify="left" if heading == "graph" else "right")
    for graph in program.graphs():
        counts = (len(graph.model.graph), graph.opset, len(graph.input_names), len(graph.output_names))
        table.add_row(graph.name, *(str(c) for c in counts))
    console = stdout_console()
    console.print(table)
    if not program.entries:
        console.print(
            f"inference only: `{file.name}` has no training information, so there is nothing to step; "
            "`onward make-trainable` adds it"
        )
        return
    size = sum(v.nbytes for v in program.state.values())
    console.print(
        f"state: {counted(len(program.state), 'tensor')}, {counted(size, 'byte')}; see {output}/README.md for the loop"
    )
