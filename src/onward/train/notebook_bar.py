"""The progress of a run in a notebook: one output that is redrawn, with a bar, the loss and a row per epoch."""

from __future__ import annotations

import importlib
import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

from onward import notebook
from onward.train.callbacks import Callback, Logs

if TYPE_CHECKING:
    from onward.train.loop import Run

_EVERY = 0.2  # seconds between two drawings
_ROWS = 20  # epochs that stay visible while the run goes on


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook: Jupyter, VS Code, Colab."""
    if "IPython" not in sys.modules:
        return False
    shell = importlib.import_module("IPython").get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookBar(Callback):
    """Draws the bar into one output of the cell; nothing goes to stderr, which notebooks print in red."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display")
        self._handle: Any = None
        self._drawn = 0.0
        self._greeting = ""
        self._state = ""

    def on_fit_begin(self, run: Run) -> None:
        from onward.train.progress import greeting_of

        self._greeting = greeting_of(run)
        self._handle = self._display.display(self._page(run, {}), display_id=True)

    def on_step_end(self, run: Run, logs: Logs) -> None:
        if time.perf_counter() - self._drawn >= _EVERY:
            self._draw(run, logs)

    def on_validation_begin(self, run: Run) -> None:
        self._state = "validating"
        self._draw(run, {})

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        self._state = ""
        self._draw(run, {})

    def on_fit_end(self, run: Run) -> None:
        if self._handle is not None:
            self._state = "finished" if run.finished else "stopped"
            self._draw(run, {})

    def _draw(self, run: Run, logs: Logs) -> None:
        if self._handle is not None:
            self._handle.update(self._page(run, logs))
        self._drawn = time.perf_counter()

    def _page(self, run: Run, logs: Logs) -> Any:
        return self._display.HTML(progress_html(run, logs, self._greeting, self._state))


def progress_html(run: Run, logs: Logs, greeting: str, state: str) -> str:
    """Return the bar, the numbers of the last step and the table of the epochs as HTML."""
    from onward.train.progress import numbers_of, show, show_seconds

    position, per_epoch, epochs = run.position, run.steps_per_epoch, run.settings.epochs
    done = (per_epoch or 0) * position.epoch + position.batch
    total = per_epoch * epochs if per_epoch else None
    over = state in ("finished", "stopped")
    bar = f'<progress value="{done}" max="{total}"></progress> {done}/{total} steps' if total else f"{done} steps"
    epoch = min(position.epoch + 1, epochs)
    parts = [f"epoch {epoch}/{epochs}"] if not over else []
    parts += [state] if state else []
    parts += [f"{name} {show(value)}" for name, value in numbers_of(logs).items()]
    since, new = time.perf_counter() - run.started, position.step - run.steps_before
    if over:
        parts.append(show_seconds(since))
    elif total and new > 0:
        parts.append(f"{show_seconds(since / new * (total - done))} left")
    if run.history.stopped:
        parts.append(run.history.stopped)
    records = [
        {"epoch": r["epoch"], **numbers_of(r), "seconds": round(r["seconds"], 2)} for r in run.history.epochs[-_ROWS:]
    ]
    hidden = f"the last {_ROWS} of {len(run.history.epochs)} epochs" if len(run.history.epochs) > _ROWS else ""
    line = f"<div>{bar} · {escape(' · '.join(parts))}</div>"
    hello = f'<div class="soft">{escape(greeting)}</div>' if greeting else ""
    return notebook.panel("Training", hello, line, notebook.grid(records, note=hidden) if records else "")
