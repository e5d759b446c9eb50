"""Callbacks that record a run: JSON lines, TensorBoard events, a plot, a report."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import os
import time
import warnings
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from onward import notebook
from onward.arguments import check_path, whole
from onward.errors import A101, ArgumentError, Diagnostic, require_extra
from onward.storage import atomic as fsio
from onward.train.asked import ask
from onward.train.callbacks import Callback, Logs
from onward.train.charts import Chart, check_picture
from onward.train.plot import loss_chart
from onward.train.report import build_report, environment, settings_of

if TYPE_CHECKING:
    from onward.train.loop import Run


def _prepare(path: Path, what: str) -> None:
    """Raise before the training if `path` cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(21, os.strerror(21))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        raise ArgumentError(
            Diagnostic(A101, f"the {what} `{path}` cannot be written: {error.strerror or error}")
        ) from error


class JsonLog(Callback):
    """Writes one JSON object per line: `start`, each step (or every n-th), each epoch, each checkpoint, `end`.

    A resumed run continues the file. Lines of steps that are done again are removed first.
    """

    every = 1
    _file: IO[str] | None = None
    _flushed = 0.0

    def __init__(self, path: str | Path, every: int = 1) -> None:
        check_path("path", path)
        self.path = Path(path)
        self.every = whole("every", every, 1)

    def _write(self, event: str, record: dict[str, Any], flush: bool = True) -> None:
        if self._file is None:
            return
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        try:
            self._file.write(json.dumps({"event": event, "time": round(time.time(), 3), **plain}) + "\n")
            if flush or time.monotonic() - self._flushed > 1.0:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError as error:  # a full disk: the log ends, and the run goes on
            warnings.warn(f"the log `{self.path}` ends here, it could not be written: {error}", stacklevel=2)
            self._forget()

    def _forget(self) -> None:
        """Close the file, without what could not be written."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def on_fit_begin(self, run: Run) -> None:
        _prepare(self.path, "log")
        if run.position.step > 0 and self.path.exists():
            self._cut(run.position.step, run.position.epoch)
            mode = "a"
        else:
            mode = "w"
        self._file = open(self.path, mode, encoding="utf-8")  # noqa: SIM115 -- closed by on_fit_end
        self._write_start(run)

    def _write_start(self, run: Run) -> None:
        self._write(
            "start",
            {
                "step": run.position.step,
                "epoch": run.position.epoch + 1,
                "settings": settings_of(run),
                "environment": environment(run),
            },
        )

    def _cut(self, step: int, epochs: int) -> None:
        kept = []
        for line in self.path.read_text("utf-8").splitlines(keepends=True):
            try:
                record = json.loads(line)
            except ValueError:  # a line that a crash cut off
                continue
            done = record.get("event") == "epoch" and record.get("epoch", 0) > epochs
            if record.get("step", 0) <= step and not done and record.get("event") != "end":
                kept.append(line)
        fsio.write_atomic(self.path, ["".join(kept).encode("utf-8")])

    def on_step_end(self, run: Run, logs: Logs) -> None:
        if logs["step"] % self.every == 0:
            self._write("step", dict(logs), flush=False)

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        self._write("epoch", dict(logs))

    def on_checkpoint(self, run: Run, path: str) -> None:
        self._write("checkpoint", {"step": run.position.step, "path": path})

    def _write_end(self, run: Run) -> None:
        self._write("end", {"step": run.position.step, "finished": run.finished, "stopped": run.history.stopped})

    def on_fit_end(self, run: Run) -> None:
        self._write_end(run)
        self._forget()


class TensorBoard(Callback):
    """Writes TensorBoard events: `step/loss` for every step and each column of the epochs under `epoch/`."""

    def __init__(self, directory: str | Path) -> None:
        try:
            self._writer_module = importlib.import_module("tensorboard.summary.writer.event_file_writer")
            self._event = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        except ImportError as error:
            raise require_extra("tensorboard", "tensorboard", "writing TensorBoard events") from error
        check_path("directory", directory)
        self.directory = Path(directory)
        self._writer: Any = None

    def on_fit_begin(self, run: Run) -> None:
        _prepare(self.directory / "events", "TensorBoard directory")
        self._writer = self._writer_module.EventFileWriter(str(self.directory))
        if run.position.step > 0:  # hides what an interrupted run wrote after its last checkpoint
            session = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(run.position.step + 1, session_log=session)

    def _add(self, step: int, **content: Any) -> None:
        if self._writer is not None:
            self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, **content))

    def _scalars(self, step: int, values: dict[str, float]) -> None:
        entries = [self._summary.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, summary=self._summary.Summary(value=entries))

    def on_step_end(self, run: Run, logs: Logs) -> None:
        values = {f"step/{k}": float(v) for k, v in logs.items() if k not in ("step", "epoch")}
        self._scalars(int(logs["step"]), values)

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        numbers = {k: v for k, v in logs.items() if isinstance(v, (int, float)) and k not in ("step", "epoch")}
        self._scalars(int(logs["step"]), {f"epoch/{k}": float(v) for k, v in numbers.items()})
        if self._writer is not None:
            self._writer.flush()

    def on_fit_end(self, run: Run) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _Document(Callback):
    """A file that is rewritten after each epoch. A failure to write it is only a warning."""

    what = "file"

    def __init__(self, path: str | Path) -> None:
        check_path("path", path)
        self.path = Path(path)

    def on_fit_begin(self, run: Run) -> None:
        _prepare(self.path, self.what)

    def make(self, run: Run) -> str | bytes:
        """Return the content of the file."""
        raise NotImplementedError

    def _write(self, run: Run) -> None:
        try:
            made = self.make(run)
            fsio.write_atomic(self.path, [made.encode("utf-8") if isinstance(made, str) else made])
        except Exception as error:  # noqa: BLE001 -- whatever it is, it must not end the run
            warnings.warn(f"the {self.what} `{self.path}` could not be written: {error}", stacklevel=2)

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        self._write(run)

    def on_fit_end(self, run: Run) -> None:
        if run.history.epochs:
            self._write(run)


class LossPlot(_Document):
    """Draws the loss as SVG or PNG, by the name of the file, again after each epoch."""

    what = "plot"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        check_picture(self.path)

    def make(self, run: Run) -> bytes:
        return Chart(loss_chart(run.history.epochs, run.history.step_losses)).encoded(self.path)


class Report(_Document):
    """Writes the HTML report, again after each epoch, with a confusion matrix where the target is a class.

    In a notebook it shows the report that it has written.
    """

    what = "report"

    def __init__(self, path: str | Path, title: str = "Training") -> None:
        super().__init__(path)
        self.title = title

    def on_fit_begin(self, run: Run) -> None:
        super().on_fit_begin(run)
        if run.validation is None or any(a.is_matrix for a in run.asked):
            return
        program = run.trainer.program
        try:
            (confusion,) = ask(program, ["confusion"])
        except ArgumentError:  # the outputs and targets are not classes
            return
        is_class = {t.name: t.dtype.startswith(("int", "uint")) for t in program.targets}
        if is_class[confusion.target]:
            run.asked.append(dataclasses.replace(confusion, optional=True))

    def _repr_html_(self) -> str:
        if not self.path.exists():
            return notebook.panel(f"Report {self.path}", '<div class="soft">not written yet</div>')
        page = escape(self.path.read_text("utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:600px;border:0"></iframe>'

    def make(self, run: Run) -> str:
        return build_report(
            run.history,
            title=self.title,
            settings=settings_of(run),
            environment=environment(run),
            classes=run.trainer.preparation.classes,
            finished=run.finished,
        )
