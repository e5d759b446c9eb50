"""The progress of a training run: a live bar in a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from onward.train.callbacks import Callback, Logs
from onward.train.data.preparation import Preparation
from onward.train.notebook_bar import NotebookBar, in_notebook

if TYPE_CHECKING:
    from onward.train.loop import Run

MODES = ("auto", "bar", "notebook", "plain", "none")
_HIDDEN = {"epoch", "step", "seconds", "samples_per_second", "learning_rate"}


def progress_callback(progress: str | bool) -> list[Callback]:
    """Return the callback for `fit(progress=…)`: "auto", "bar", "notebook", "plain", "none", or True and False."""
    mode = {True: "auto", False: "none"}.get(progress, progress) if isinstance(progress, bool) else progress
    assert mode in MODES, "FitSettings.of refuses others"
    if mode == "auto":
        mode = "notebook" if in_notebook() else "bar" if sys.stderr.isatty() else "plain"
    if mode == "none":
        return []
    return [{"bar": ProgressBar, "notebook": NotebookBar, "plain": PlainLines}[mode]()]


def show(value: Any) -> str:
    """Return a number as short text.

    >>> show(0.123456), show(12), show(1e-7), show(1234567.0)
    ('0.1235', '12', '1e-07', '1.235e+06')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_seconds(seconds: float) -> str:
    """Return a duration in words.

    >>> show_seconds(0.4), show_seconds(75), show_seconds(7322)
    ('0.4 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def numbers_of(logs: Logs) -> dict[str, float]:
    """Return the losses and metrics of a record."""
    return {k: v for k, v in logs.items() if k not in _HIDDEN and isinstance(v, (int, float))}


def show_preparation(preparation: Preparation) -> None:
    """Print what `fit` found for the columns of a table, one line for each."""
    for line in preparation.summary():
        print(f"prepared  {line}", file=sys.stderr, flush=True)


def greeting_of(run: Run) -> str:
    """Return the first line about a resumed run; nothing for a new one."""
    position = run.position
    if not position.step or not (position.batch or position.epoch):
        return ""
    if position.epoch >= run.settings.epochs:
        return f"this run is finished, at step {position.step} after epoch {position.epoch}; raise epochs to go on"
    return f"going on at step {position.step} (epoch {position.epoch + 1})"


class PlainLines(Callback):
    """One line per epoch, and at most one every ten seconds in between; for logs and pipes."""

    def __init__(self, every: float = 10.0) -> None:
        self._every = every
        self._last = 0.0

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def on_fit_begin(self, run: Run) -> None:
        self._last = time.perf_counter()
        greeting = greeting_of(run)
        if greeting:
            self._print(greeting)

    def on_step_end(self, run: Run, logs: Logs) -> None:
        now = time.perf_counter()
        if now - self._last < self._every:
            return
        self._last = now
        of = f"/{run.steps_per_epoch}" if run.steps_per_epoch else ""
        rate = run.position.samples / max(run.position.seconds, 1e-9)
        self._print(
            f"epoch {logs['epoch']}/{run.settings.epochs}  step {run.position.batch}{of}  "
            f"loss {show(logs.get('loss'))}  {rate:.0f} samples/s"
        )

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        self._last = time.perf_counter()
        numbers = "  ".join(f"{name} {show(value)}" for name, value in numbers_of(logs).items())
        self._print(
            f"epoch {logs['epoch']}/{run.settings.epochs}  {numbers}  "
            f"({show_seconds(logs['seconds'])}, {logs['samples_per_second']:.0f} samples/s)"
        )

    def on_fit_end(self, run: Run) -> None:
        if run.history.stopped:
            self._print(f"stopped: {run.history.stopped}")


class _Speed(ProgressColumn):
    def __init__(self) -> None:
        super().__init__(table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("speed", ""), style="cyan")


class ProgressBar(Callback):
    """A live bar: steps, loss, throughput, time left; and a table with one row per epoch."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task: Any = None
        self._columns: list[str] = []
        self._widths: list[int] = []
        self._mean = 0.0

    def on_fit_begin(self, run: Run) -> None:
        width = self._console.width
        columns: list[ProgressColumn] = [
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}" + (" steps" if width >= 80 else "")),
            TextColumn("loss [bold]{task.fields[loss]}"),
        ]
        if width >= 70:  # columns without room are left out: a line that wraps cannot be redrawn
            columns.append(_Speed())
        if width >= 90:
            columns.append(TimeElapsedColumn())
        columns += [TextColumn("left"), TimeRemainingColumn()]
        self._progress = Progress(
            *columns,
            console=self._console,
            transient=True,
            refresh_per_second=8,
        )
        per_epoch = run.steps_per_epoch
        total = per_epoch * run.settings.epochs if per_epoch else None
        done = (per_epoch or 0) * run.position.epoch + run.position.batch
        self._task = self._progress.add_task(
            f"epoch {run.position.epoch + 1}/{run.settings.epochs}", total=total, completed=done, loss="–", speed=""
        )
        self._mean = float("nan")
        greeting = greeting_of(run)
        if greeting:
            self._console.print(greeting, highlight=False)
        self._progress.start()

    def on_step_end(self, run: Run, logs: Logs) -> None:
        if self._progress is None:
            return
        loss = float(logs.get("loss", float("nan")))
        self._mean = loss if self._mean != self._mean else 0.95 * self._mean + 0.05 * loss
        rate = run.position.samples / max(run.position.seconds, 1e-9)
        self._progress.update(
            self._task,
            advance=1,
            loss=f"{self._mean:.4f}",
            speed=f"{rate:,.0f} samples/s",
            description=f"epoch {run.position.epoch + 1}/{run.settings.epochs}",
        )

    def on_validation_begin(self, run: Run) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description=f"validating {run.position.epoch + 1}/{run.settings.epochs}")

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        if self._progress is None:
            return
        numbers = numbers_of(logs)
        if list(numbers) != self._columns:
            self._columns = list(numbers)
            headings = ["epoch", *self._columns, "rate", "time", "samples/s"]
            self._widths = [max(len(h), 7) for h in headings]
            self._row(headings, "bold underline")
        self._row(
            [
                f"{logs['epoch']}/{run.settings.epochs}",
                *(f"{v:.4f}" if 1e-3 <= abs(v) < 1e4 or v == 0 else f"{v:.3g}" for v in numbers.values()),
                f"{logs['learning_rate']:.3g}" if "learning_rate" in logs else "–",
                show_seconds(logs["seconds"]),
                f"{logs['samples_per_second']:,.0f}",
            ],
            "",
        )

    def _row(self, cells: list[str], style: str) -> None:
        assert self._progress is not None
        table = Table.grid(padding=(0, 2))
        for width in self._widths:
            table.add_column(justify="right", min_width=width)
        table.add_row(*cells, style=style)
        self._progress.console.print(table)

    def on_checkpoint(self, run: Run, path: str) -> None:
        if self._progress is not None:
            self._progress.refresh()

    def on_fit_end(self, run: Run) -> None:
        if self._progress is None:
            return
        self._progress.stop()
        self._progress = None
        if run.history.stopped:
            self._console.print(f"stopped: {run.history.stopped}", style="yellow", highlight=False)
