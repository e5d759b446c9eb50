"""Callbacks that send a run to MLflow or to Weights & Biases, and JSON lines for another program."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from onward.errors import require_extra
from onward.train.callbacks import Callback, Logs
from onward.train.report import environment, settings_of
from onward.train.watchers import JsonLog

if TYPE_CHECKING:
    from onward.train.loop import Run

_MOST = 500  # metrics in one call of MLflow, which takes at most 1000


def _numbers(prefix: str, logs: Logs) -> dict[str, float]:
    return {
        f"{prefix}{name}".replace(":", "/"): float(value)
        for name, value in logs.items()
        if name not in ("step", "epoch") and isinstance(value, (int, float)) and math.isfinite(value)
    }


class JsonLines(JsonLog):
    """Prints what `JsonLog` writes to a file: one JSON object per line, each step and each epoch as it ends."""

    def __init__(self, stream: IO[str] | None = None, every: int = 1) -> None:
        self.every = every
        self.stream = stream

    def on_fit_begin(self, run: Run) -> None:
        self._file = self.stream or sys.stdout
        self._write_start(run)

    def saved(self, kind: str, path: object) -> None:
        """Print that a result was saved."""
        self._file = self.stream or sys.stdout
        self._write("saved", {"kind": kind, "path": str(path)})

    def on_fit_end(self, run: Run) -> None:
        self._write_end(run)
        self._file = None


class MLflow(Callback):
    """Sends settings, the loss of each step and the columns of each epoch to MLflow.

    `experiment` is its name; `tracking_uri` where it is kept (default: what MLflow is set to). The run is not made the
    active one, so other MLflow calls of the program are not affected. A resumed run goes on with its MLflow run.
    """

    def __init__(
        self, experiment: str | None = None, *, run_name: str | None = None, tracking_uri: str | None = None
    ) -> None:
        try:
            self._mlflow = importlib.import_module("mlflow")
            self._entities = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise require_extra("mlflow", "mlflow", "logging to MLflow") from error
        self._client = self._mlflow.MlflowClient(tracking_uri)
        self.experiment, self.run_name = experiment or "onward", run_name
        self.run_id = ""
        self._held: list[Any] = []

    def on_fit_begin(self, run: Run) -> None:
        if self.run_id:  # a resumed run
            self._client.update_run(self.run_id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        self.run_id = self._client.create_run(number, run_name=self.run_name).info.run_id
        told = {**settings_of(run), **environment(run)}
        parameters = [self._entities.Param(_key(k), str(v)[:500]) for k, v in told.items()]
        self._client.log_batch(self.run_id, params=parameters)

    def _hold(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._held += [self._entities.Metric(_key(name), value, now, step) for name, value in values.items()]
        if len(self._held) >= _MOST:
            self._send()

    def _send(self) -> None:
        held, self._held = self._held, []
        if held:
            self._client.log_batch(self.run_id, metrics=held)

    def on_step_end(self, run: Run, logs: Logs) -> None:
        self._hold(int(logs["step"]), _numbers("step/", logs))

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        self._hold(int(logs["step"]), _numbers("", logs))
        self._send()

    def on_fit_end(self, run: Run) -> None:
        if self.run_id:
            self._send()
            self._client.set_terminated(self.run_id, status="FINISHED" if run.finished else "KILLED")

    def get_state(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.run_id = str(state["run_id"])


def _key(name: str) -> str:
    """Return a name that MLflow takes: letters, digits, _ - . / and spaces."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)


class WandB(Callback):
    """Sends settings, the loss of each step and the columns of each epoch to Weights & Biases.

    `init` are further arguments of `wandb.init`, such as `mode="offline"`. A resumed run goes on with its run there.
    """

    def __init__(self, project: str | None = None, **init: Any) -> None:
        try:
            # The library, not the folder `wandb/` that its runs leave behind and that can be imported as well.
            self._start = importlib.import_module("wandb").init
        except (ImportError, AttributeError) as error:
            raise require_extra("wandb", "wandb", "logging to Weights & Biases") from error
        self.project, self._init = project or "onward", init
        self.run_id = ""
        self._run: Any = None

    def on_fit_begin(self, run: Run) -> None:
        given = {"id": self.run_id, "resume": "allow"} if self.run_id else {}
        config = {**settings_of(run), **environment(run)}
        self._run = self._start(project=self.project, config=config, **{**given, **self._init})
        self.run_id = self._run.id

    def on_step_end(self, run: Run, logs: Logs) -> None:
        self._run.log(_numbers("step/", logs), step=int(logs["step"]))

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        self._run.log({**_numbers("", logs), "epoch": logs["epoch"]}, step=int(logs["step"]))

    def on_fit_end(self, run: Run) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if run.finished else 1)
            self._run = None

    def get_state(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.run_id = str(state["run_id"])
