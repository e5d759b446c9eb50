"""The consoles that commands print to, and how a diagnostic looks there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from onward.errors import Diagnostic, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}

_NEVER_REACHED = 10_000


def stdout_console(*, soft_wrap: bool = False, markup: bool = False) -> Console:
    """Return a console on stdout: as wide as the terminal, and in a pipe or a file as wide as the content.

    A table that is cut or folded for a screen is of no use to `grep`. `COLUMNS` sets the width in both cases.
    """
    console = Console(file=sys.stdout, highlight=False, soft_wrap=soft_wrap, markup=markup)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _NEVER_REACHED
    return console


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


def print_diagnostics(diagnostics: Iterable[Diagnostic], console: Console) -> None:
    """Print each diagnostic, a blank line between them; in colour where the terminal has it."""
    for index, diagnostic in enumerate(diagnostics):
        if index:
            console.print()
        head, *rest = diagnostic.render().split("\n")
        label, _, message = head.partition(": ")
        console.print(Text.assemble((label, _STYLES[diagnostic.severity]), ": ", (message, "bold")))
        for line in rest:
            console.print(Text(line, style="cyan" if line.startswith("hint:") else ""))
