"""`onward check`: report everything that is wrong with a model."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from onward.check import Report
from onward.check import check as run_check
from onward.errors import CODES, Diagnostic, ModelError, Severity, unknown_name

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}


def check(
    file: Annotated[Path | None, typer.Argument(help="The ONNX model to check.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    pedantic: Annotated[
        bool, typer.Option("--pedantic", help="Read the standard at its strictest: warnings count as errors.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="CODE", help="Explain a diagnostic code, e.g. C105.")
    ] = None,
) -> None:
    """Check a model, its training graphs included, against the ONNX standard.

    Exit code 0: no errors (warnings alone are no errors, except with --pedantic). 1: errors. 2: not a model.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name is no reason to fail
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    if explain is not None:
        _explain(explain, console)
        return
    if file is None:
        raise typer.BadParameter("give the file to check, or --explain CODE", param_hint="FILE")
    try:
        report = run_check(file, pedantic=pedantic)
    except ModelError as error:
        if as_json:
            found = [d.as_dict() for d in error.diagnostics]
            print(json.dumps({"format": 1, "source": str(file), "ok": False, "unreadable": True, "findings": found}))
        else:
            _print_all(error.diagnostics, Console(stderr=True, highlight=False, soft_wrap=True))
        raise typer.Exit(2) from error
    if as_json:
        print(report.to_json())
    else:
        _print(report, console)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: Report, console: Console) -> None:
    _print_all(report.findings, console)
    if report.findings:
        console.print()
    console.print(Text(report.summary(), style="bold" if report.findings else "green"))


def _print_all(diagnostics: Sequence[Diagnostic], console: Console) -> None:
    for index, diagnostic in enumerate(diagnostics):
        if index:
            console.print()
        head, _, rest = diagnostic.render().partition("\n")
        label, _, message = head.partition(": ")
        console.print(Text.assemble((label, _STYLES[diagnostic.severity]), ": ", (message, "bold")))
        if rest:
            console.print(Text(rest))


def _explain(code: str, console: Console) -> None:
    wanted = code.strip().upper()
    if wanted not in CODES:
        _load_catalogue()
    found = CODES.get(wanted)
    if found is None:
        error = unknown_name("diagnostic code", code, CODES)
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(str(error)))
        raise typer.Exit(2)
    console.print(Text(f"{found.code}: {found.title}", style="bold"))
    console.print(Text(f"\n{found.why}\n\nfix: {found.fix}"))


def _load_catalogue() -> None:
    """Import every module of Onward: each defines its codes next to where they are reported."""
    import onward

    for module in pkgutil.walk_packages(onward.__path__, "onward."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue  # an optional package is missing, and so are the codes of what needs it
