"""`onward check`: report everything that is wrong with a model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from onward.errors import A100, ArgumentError, BackendError, Diagnostic, ModelError, catalogue, counted

if TYPE_CHECKING:
    from rich.console import Console

    from onward.check import Report


def check(
    file: Annotated[
        Path | None,
        Argument(metavar="FILE|DIR", help="The ONNX model to check, or a compiled program.", show_default=False),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
    pedantic: Annotated[
        bool, Option("--pedantic", help="Read the standard at its strictest: warnings count as errors.")
    ] = False,
    backend: Annotated[
        str | None, Option(help="What runs the self-test of a program (default: onnxruntime).", show_default=False)
    ] = None,
    explain: Annotated[
        str | None, Option("--explain", metavar="CODE", help="Explain a diagnostic code, e.g. C105.")
    ] = None,
) -> None:
    """Check a model, its training graphs included, against the ONNX standard.

    Of a program that `onward compile` wrote, every file is checked, and its self-test runs (`--backend`).
    Exit code 0: no errors (warnings do not count, except with --pedantic). 1: errors. 2: not a model.

    Examples:
        onward check net.train.onnx
        onward check --explain C105
    """
    from onward.cli.console import print_diagnostics, stderr_console, stdout_console

    console = stdout_console(soft_wrap=True)
    if explain is not None:
        _explain(explain, console)
        return
    if file is None:
        raise typer.BadParameter("give the file to check, or --explain CODE", param_hint="FILE")
    from onward.check import check as run_check
    from onward.compiler.package import is_program

    try:
        said = ""
        if is_program(file):
            report, said = _check_program(file, backend or "onnxruntime", pedantic)
        elif backend is None:
            report = run_check(file, pedantic=pedantic)
        else:
            raise typer.BadParameter("it runs the self-test of a program, which this is not", param_hint="--backend")
    except ModelError as error:
        if as_json:
            found = [d.as_dict() for d in error.diagnostics]
            print(json.dumps({"format": 1, "source": str(file), "ok": False, "unreadable": True, "findings": found}))
        else:
            print_diagnostics(error.diagnostics, stderr_console())
        raise typer.Exit(2) from error
    if as_json:
        print(report.to_json())
    else:
        _print(report, console)
        if said:
            console.print(said)
    if not report.ok:
        raise typer.Exit(1)


def _check_program(folder: Path, backend: str, pedantic: bool) -> tuple[Report, str]:
    """Return what is wrong with a program, what deviates in its self-test included, and a sentence on that test.

    Raises:
        ModelError: a file is missing or was changed.
    """
    from onward.backends.self_test import run_self_test
    from onward.check import Report
    from onward.check import check as run_check
    from onward.compiler.program import Program

    program = Program.load(folder)
    found: list[Diagnostic] = []
    for graph in program.graphs():
        report = run_check(graph.proto(), pedantic=pedantic)
        found += (dataclasses.replace(d, place=f"{graph.name} graph: {d.place}") for d in report.findings)
    try:
        compared = run_self_test(program, backend)
    except BackendError as error:
        return Report((*found, *error.diagnostics), str(folder)), f"the self-test fails on backend `{backend}`"
    said = f"the self-test passes on backend `{backend}`: {counted(compared, 'value')} compared"
    if not compared:
        said = "the program has no self-test: it was left out, or an earlier version compiled it"
    return Report(tuple(found), str(folder)), said


def _print(report: Report, console: Console) -> None:
    from rich.text import Text

    from onward.cli.console import print_diagnostics

    print_diagnostics(report.findings, console)
    if report.findings:
        console.print()
    console.print(Text(report.summary(), style="bold" if report.findings else "green"))


def _explain(code: str, console: Console) -> None:
    from rich.text import Text

    from onward.cli.console import print_diagnostics, stderr_console

    wanted = code.strip().upper()
    found = catalogue().get(wanted)
    if found is None:
        print_diagnostics(_unknown_code(code.strip()).diagnostics, stderr_console())
        raise typer.Exit(2)
    console.print(Text(f"{found.code}: {found.title}", style="bold"))
    console.print(Text(f"\n{found.why}\n\nfix: {found.fix}"))


def _unknown_code(given: str) -> ArgumentError:
    """Return the error for a code that does not exist, with those that look like it or whose title has the word."""
    from onward.arguments import nearest

    codes = catalogue()
    near = nearest(given.upper(), sorted(codes), n=4)
    near = near or [c for c in sorted(codes) if given and given.lower() in codes[c].title.lower()][:8]
    listed = "; ".join(f"{c} ({codes[c].title})" for c in near)
    return ArgumentError(
        Diagnostic(
            A100,
            f"no such diagnostic code `{given}`",
            place="--explain",
            needed="a letter and three digits, such as C105, or a word from a title",
            hint=f"did you mean {listed}?" if near else "docs/codes.md lists all of them",
        )
    )
