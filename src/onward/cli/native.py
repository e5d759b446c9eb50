"""The part of `onward compile` that writes native binaries, with `--target`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from onward.backends.iree.native import Native
    from onward.backends.iree.targets import Target
    from onward.compiler.program import Program


@dataclasses.dataclass(frozen=True)
class NativeOptions:
    """The options of `onward compile` about native binaries."""

    target: str
    batch: int | None
    sizes: Sequence[str]
    int32: bool
    runner: str
    seconds: float
    gigabytes: float
    self_test: Callable[[Program], dict[str, np.ndarray]] | None


def compile_native(file: Path, output: Path, chosen: Mapping[str, Any], options: NativeOptions) -> None:
    """Compile a training model to native binaries and print their sizes."""
    from onward import versions
    from onward.backends.iree import installed_iree
    from onward.backends.iree.targets import find_target
    from onward.compiler.compile import compile_model

    target = find_target(options.target, narrow_integers=options.int32)
    sizes = dict(map(parse_size, options.sizes))
    versions.check(installed_iree("a native program"))
    from onward.backends.iree.compiler import Limits
    from onward.backends.iree.native import write_native

    program = compile_model(file, profile="portable", **chosen)
    written = write_native(
        program,
        output,
        target,
        batch=options.batch,
        sizes=sizes,
        self_test=None if options.self_test is None else options.self_test(program),
        runner=options.runner,
        limits=Limits(options.seconds, options.gigabytes),
    )
    _print(file, output, target, written)


def _print(file: Path, output: Path, target: Target, written: Native) -> None:
    from rich.table import Table

    from onward.cli.console import stdout_console

    console = stdout_console()
    table = Table(title=f"{file.name} → {output}/ ({target.about})", title_justify="left", box=None, pad_edge=False)
    for index, heading in enumerate(("graph", "file", "code kB", "peak RAM kB", "compiled in s")):
        table.add_column(heading, justify="right" if index > 1 else "left")
    for each in written.graphs:
        seconds = f"{each.binary.seconds:.1f}" if each.binary.seconds else "kept"
        table.add_row(each.role, each.file, f"{each.code / 1000:,.1f}", f"{each.peak / 1000:,.1f}", seconds)
    console.print(table)
    if written.compared:
        console.print(f"verified: {written.compared} outputs are those of ONNX Runtime on the batch of the self-test")
    else:
        console.print("compiled, not run: run the self-test on the device before you trust it (docs/native.md)")


def parse_size(text: str) -> tuple[str, int]:
    """Return the name and the number of `NAME=N`."""
    from onward.errors import A101, ArgumentError, Diagnostic

    name, _, number = text.partition("=")
    if not name or not number.isdecimal():
        raise ArgumentError(Diagnostic(A101, f"`{text}` is no size", place="--size", needed="NAME=N"))
    return name, int(number)
