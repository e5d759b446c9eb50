"""The consoles that commands print to, and how a diagnostic looks there."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from onward.errors import Diagnostic, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}

_NEVER_REACHED = 10_000


class LostOutput(OSError):
    """The output could not be printed, for example because the disk behind stdout is full."""


class _Forgiving(io.FileIO):
    """Standard output whose reader may exit: later output is dropped, and the command runs to its end.

    So `onward show m.onnx | head -1` succeeds, `onward check` keeps its exit code, and a training run does not stop
    when nobody reads its output.
    """

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # the buffer types of typeshed and ours are the same
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                return super().write(data)  # type: ignore[arg-type]  # as above
            raise LostOutput(error.errno, error.strerror) from error


def forgive_stdout() -> None:
    """Make stdout survive the exit of its reader, and characters that its encoding does not have."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return  # closed, or replaced by something that is not a file
    sys.stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Forgiving(descriptor, "w", closefd=False)),
        encoding=sys.stdout.encoding,
        errors="backslashreplace",
        line_buffering=bool(sys.stdout.line_buffering),
    )


def stdout_console(*, soft_wrap: bool = False, markup: bool = False) -> Console:
    """Return a console on stdout: as wide as the terminal, and in a pipe or a file as wide as the content.

    A table that is cut or folded for a screen is useless to `grep`. `COLUMNS` sets the width in both cases.
    """
    console = Console(file=sys.stdout, highlight=False, soft_wrap=soft_wrap, markup=markup)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _NEVER_REACHED
    return console


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


def print_diagnostics(diagnostics: Iterable[Diagnostic], console: Console) -> None:
    """Print each diagnostic in the words of the command line, a blank line between them, in colour where it can be."""
    from onward.cli.speech import spoken

    for index, diagnostic in enumerate(diagnostics):
        if index:
            console.print()
        head, *rest = spoken(diagnostic).render().split("\n")
        label, _, message = head.partition(": ")
        console.print(Text.assemble((label, _STYLES[diagnostic.severity]), ": ", (message, "bold")))
        for line in rest:
            console.print(Text(line, style="cyan" if line.startswith("hint:") else ""))


def print_confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str], output: str = "") -> None:
    """Print a confusion matrix, with the names of the classes where they are known, and that of the output."""
    from rich.table import Table

    from onward.train.report import occurring

    console = stdout_console()
    matrix, names = occurring(matrix, classes)
    table = Table("true \\ predicted", *names, box=None)
    for name, row in zip(names, matrix, strict=True):
        table.add_row(name, *(str(n) if n else "·" for n in row))
    console.print("confusion matrix" + (f" of `{output}`" if output else ""), style="italic")
    console.print(table)
