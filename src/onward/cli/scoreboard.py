"""`onward scoreboard`: how backends do on ONNX's tests and on Onward's suite."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

if TYPE_CHECKING:
    from onward.scoreboard.board import Board, History
    from onward.scoreboard.pool import Contestant, Run
    from onward.scoreboard.tests import BoardTest


def scoreboard(
    backend: Annotated[
        list[str] | None,
        Option(
            "--backend",
            metavar="MODULE",
            help="A backend: a module or a .py file with ONNX's interface (prepare, supports_device). May be repeated. "
            "With @PYTHON, another Python runs it.",
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        Option("--peer", help="Another project, by its adapter in conformance/adapters. May be repeated."),
    ] = None,
    suite: Annotated[
        str, Option("--suite", help="The tests: onnx (ONNX's own), conformance (Onward's suite) or all.")
    ] = "all",
    only: Annotated[str, Option("--only", metavar="PART", help="Only tests whose name contains this.")] = "",
    sample: Annotated[
        int, Option("--sample", metavar="N", help="Only one test of N, always the same ones: chosen by their names.")
    ] = 1,
    jobs: Annotated[int, Option("--jobs", help="Processes at a time (default: one for each core).")] = 0,
    timeout: Annotated[float, Option("--timeout", help="Seconds that one test may take.")] = 60.0,
    memory: Annotated[float, Option("--memory", help="Gigabytes that one process may use.")] = 6.0,
    data: Annotated[
        Path | None, Option("--data", metavar="FOLDER", help="The data of Onward's suite (default: its own).")
    ] = None,
    keep: Annotated[
        bool, Option("--keep", help="Keep the results in the folder of backends and tests that do not run now.")
    ] = False,
    more: Annotated[
        list[Path] | None,
        Option("--with", metavar="FOLDER", help="Add the results of another run (implies --keep). May be repeated."),
    ] = None,
    output: Annotated[
        Path, Option("-o", "--output", metavar="FOLDER", help="Write index.html, results.json and trend.json there.")
    ] = Path("site"),
) -> None:
    """Run tests against backends, print a table, and write a page with every result.

    A test passes, fails, or is skipped with the backend's reason; a skip is not a pass. Each runs in a process that is
    replaced after a crash, a timeout or a leak, which count as one failure. The page compares with the last run in the
    folder. Exit code 0: all backends ran, whatever they score. 1: a backend or a suite could not be used.

    Examples:
        onward scoreboard --backend onward.backends.onnxruntime --suite onnx --only simple/test_gradient -o site/
        onward scoreboard --backend onward.backends.reference --suite onnx --only simple/test_sign --timeout 30
    """
    from onward.arguments import check_name
    from onward.cli.console import stderr_console, stdout_console
    from onward.scoreboard.board import contestant, make_board
    from onward.scoreboard.peers import peer as find_peer
    from onward.scoreboard.tests import SUITES, sampled

    check_name("suite", suite, SUITES, place="--suite")
    contestants = [*map(contestant, backend or []), *map(find_peer, peer or [])]
    if not contestants and not more:
        raise typer.BadParameter("name at least one --backend or --peer", param_hint="--backend")
    _check_numbers(jobs, timeout, memory, sample)
    _check_contestants(contestants)
    console = stderr_console()
    history, keep = _history(output, more or []), keep or bool(more)
    runs: list[Run] = []
    if not contestants:
        board = make_board([], [], history, keep=True)
        files = _write(board, output)
        _print(board)
        stdout_console(soft_wrap=True).print("wrote " + ", ".join(f"`{f}`" for f in files))
        return
    with tempfile.TemporaryDirectory(prefix="onward-scoreboard-") as folder:
        tests, folders, problems = _collect(suite, only, data, Path(folder))
        parts = _parts(suite, only, sample, len(tests))
        tests = sampled(tests, sample)
        for problem in problems:
            console.print(f"error: {problem}", style="bold red")
        if not tests:
            raise typer.BadParameter(f"no test has `{only}` in its name" if only else "no tests", param_hint="--only")
        for run in _run(contestants, tests, folders, jobs or os.cpu_count() or 1, timeout, int(memory * 2**30)):
            runs.append(run)
            board = make_board(tests, runs, history, keep=keep)
            board.problems, board.parts = problems, [] if keep else parts
            files = _write(board, output)  # after each backend: a board takes hours
    _print(board)
    stdout_console(soft_wrap=True).print("wrote " + ", ".join(f"`{f}`" for f in files))
    if problems or any(row.broken for row in board.rows):
        raise typer.Exit(1)


def _parts(suite: str, only: str, sample: int, count: int) -> list[str]:
    """Return what this run chooses of all tests, so that nobody takes its numbers for those of the whole."""
    found = []
    if suite != "all":
        found.append(f"Only the tests of `--suite {suite}` ran.")
    if only:
        found.append(f"Only tests with `{only}` in their names ran.")
    if sample > 1:
        found.append(f"A sample: one test of {sample}, chosen by their names, of {count:,}.")
    return found


def _history(output: Path, more: Sequence[Path]) -> History:
    from onward.errors import A101, ArgumentError, Diagnostic
    from onward.scoreboard.board import History, last_results

    empty = [f for f in more if not last_results(f)]
    if empty:
        raise ArgumentError(
            [Diagnostic(A101, f"there are no results in `{f}`", place="--with", needed="results.json") for f in empty]
        )
    return History.of(output, more)


def _write(board: Board, folder: Path) -> list[Path]:
    from onward.errors import Diagnostic, ModelError
    from onward.model.files import M111
    from onward.scoreboard.board import write_board

    try:
        return write_board(board, folder)
    except OSError as error:
        raise ModelError(Diagnostic(M111, f"cannot write to `{folder}`: {error.strerror or error}")) from error


def _check_numbers(jobs: int, timeout: float, memory: float, sample: int) -> None:
    given = (("--jobs", jobs, 0), ("--timeout", timeout, 0.1), ("--memory", memory, 0.05), ("--sample", sample, 1))
    for name, value, least in given:
        if not least <= value < float("inf"):
            raise typer.BadParameter(f"{value} is out of range: at least {least}", param_hint=name)


def _check_contestants(contestants: Sequence[Contestant]) -> None:
    """Report every file and Python that does not exist, and names that occur twice."""
    from onward.errors import A101, ArgumentError, Diagnostic

    problems = []
    for index, one in enumerate(contestants):
        if one.backend.endswith(".py") and not Path(one.backend).is_file():
            problems.append(Diagnostic(A101, f"there is no file `{one.backend}`", place="--backend"))
        if os.sep in one.python and not Path(one.python).is_file():
            problems.append(Diagnostic(A101, f"there is no Python `{one.python}`", place="--backend"))
        if one.name in {other.name for other in contestants[:index]}:
            problems.append(Diagnostic(A101, f"two backends are called `{one.name}`", place="--backend"))
    if problems:
        raise ArgumentError(problems)


def _collect(suite: str, only: str, data: Path | None, folder: Path) -> tuple[list[BoardTest], list[str], list[str]]:
    """Return the tests, the folders that workers import from, and what is wrong with a suite."""
    from onward.cli.console import stderr_console
    from onward.scoreboard.tests import BoardError, conformance_tests, onnx_tests, suite_folder

    tests: list[BoardTest] = []
    folders: list[str] = []
    problems: list[str] = []
    with stderr_console().status("reading the tests"):
        if suite in ("onnx", "all"):
            tests += onnx_tests(folder, only)
        if suite in ("conformance", "all"):
            try:
                folders.append(suite_folder())
                tests += conformance_tests(data, only)
            except BoardError as error:
                problems.append(str(error))
    return tests, folders, problems


def _run(
    contestants: Sequence[Contestant],
    tests: Sequence[BoardTest],
    folders: list[str],
    jobs: int,
    timeout: float,
    memory: int,
) -> Iterator[Run]:
    """Yield the results of each backend."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from onward.cli.console import stderr_console
    from onward.scoreboard.pool import Outcome, run_tests

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(), TextColumn("{task.fields[name]}", style="dim"),
    )  # fmt: skip
    console = stderr_console()
    console.soft_wrap = False
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        for one in contestants:
            task = bars.add_task(one.name, total=len(tests), failed=0, name="")
            failed = 0

            def advance(test: BoardTest, outcome: Outcome) -> None:
                nonlocal failed
                failed += outcome.status == "failed"
                bars.update(task, advance=1, failed=failed, name=test.name[:40])  # noqa: B023  # called in this turn

            run = run_tests(one, tests, jobs=jobs, timeout=timeout, memory=memory, folders=folders, progress=advance)
            bars.update(task, name="")
            yield run


def _print(board: Board) -> None:
    from rich.table import Table
    from rich.text import Text

    from onward.cli.console import stdout_console

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("backend")
    for column in (*board.suites, "passed", "failed", "skipped", "", "since the last run"):
        table.add_column(column, justify="right")
    for row in board.rows:
        counts = row.counts(board.tests)
        cells = []
        for suite in board.suites:
            chosen = board.of_suite(suite)
            found = row.counts(chosen)
            cells.append(f"{found['passed']}/{found.total()}" + "*" * (found.total() < len(chosen)))
        gained, lost = row.changes()
        change = " ".join([f"+{len(gained)}"] * bool(gained) + [f"−{len(lost)}"] * bool(lost))
        share = board.percent(counts["passed"], counts.total()) + "*" * (counts.total() < len(board.tests))
        numbers = [str(counts[s]) for s in ("passed", "failed", "skipped")]
        table.add_row(row.name, *cells, *numbers, share, change)
    console = stdout_console()
    console.print(table)
    if any(row.counts(board.tests).total() < len(board.tests) for row in board.rows if not row.broken):
        console.print("* of the tests that ran")
    for part in board.parts:
        console.print(part, soft_wrap=True)
    for row in board.rows:
        if row.broken:
            console.print(Text.assemble((f"{row.name} cannot be used: ", "bold red"), row.broken), soft_wrap=True)
