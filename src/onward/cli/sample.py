"""`onward sample NAME -o FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def sample(
    name: Annotated[str, Argument(help="linear, digits or mnist.", show_default=False)],
    output: Annotated[Path | None, Option("-o", "--output", help="The file to write (default: NAME.onnx).")] = None,
) -> None:
    """Write a ready-made training model: the same bytes on every machine.

    Examples:
        onward sample mnist
        onward sample digits -o digits.onnx
    """
    from onward import samples
    from onward.cli.console import stdout_console
    from onward.errors import counted
    from onward.model import serde

    model = samples.build(name)
    path = output or Path(f"{name}.onnx")
    serde.save(model, path)
    stdout_console(soft_wrap=True).print(
        f"wrote `{path}`: feed {', '.join(f'`{n}`' for n in [*model.inputs, *model.targets])}; "
        f"{counted(len(model.parameters), 'parameter')} to train"
    )
