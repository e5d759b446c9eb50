"""`onward compile FILE -o DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def compile_command(
    file: Annotated[Path, Argument(help="A training model (.onnx).", show_default=False)],
    output: Annotated[Path, Option("-o", "--output", help="The directory to write.", show_default=False)],
    target_opset: Annotated[int | None, Option(help="The opset of the graphs (default: the lowest they need).")] = None,
    target_ir: Annotated[int | None, Option(help="The IR version of the graphs (default: the lowest).")] = None,
    seed: Annotated[int, Option(help="The initial random key.")] = 0,
    split: Annotated[
        bool, Option("--split", help="Also write gradient and update as two graphs (accumulation, federation).")
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
    steps = {f"step {name}": s.model for name, s in program.steps.items()}
    steps |= {f"gradients {name}": s.model for name, s in program.gradients.items()}
    steps |= {f"update {name}": s.model for name, s in program.updates.items()}
    graphs = {**steps, "evaluate": program.evaluate, "infer": program.infer, "initialize": program.initialize}
    for name, model in graphs.items():
        if model is not None:
            counts = (len(model.graph.node), model.opset_import[0].version, len(model.graph.input))
            table.add_row(name, *(str(c) for c in counts), str(len(model.graph.output)))
    console = stdout_console()
    console.print(table)
    if not program.steps:
        console.print(
            f"inference only: `{file.name}` has no training information, so there is nothing to step; "
            "`onward make-trainable` adds it"
        )
        return
    size = sum(v.nbytes for v in program.state.values())
    console.print(
        f"state: {counted(len(program.state), 'tensor')}, {counted(size, 'byte')}; see {output}/README.md for the loop"
    )
