"""Callbacks: they watch and control a run between steps and epochs.

A callback that remembers something returns it from `get_state` (JSON) and `get_arrays`, so that a resumed run goes on
exactly as if it had never stopped.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.arguments import check_count, check_name, check_number, unknown_name
from onward.errors import A101, ArgumentError, Diagnostic

if TYPE_CHECKING:
    from onward.train.loop import Run

Logs = Mapping[str, Any]


class Callback:
    """The base class of callbacks. Override what you need: every method does nothing here."""

    def on_fit_begin(self, run: Run) -> None:
        """Called once, after the data was matched and before the first step."""

    def on_step_end(self, run: Run, logs: Logs) -> None:
        """Called after every step; `logs` holds the loss of the step and other scalar outputs."""

    def on_validation_begin(self, run: Run) -> None:
        """Called after the last step of an epoch, where there is validation data."""

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        """Called after validation; `logs` is the record of the epoch."""

    def on_checkpoint(self, run: Run, path: str) -> None:
        """Called after a checkpoint was written."""

    def on_fit_end(self, run: Run) -> None:
        """Called when `fit` returns, also after an error."""

    def get_state(self) -> dict[str, Any]:
        """Return what must survive a restart, as JSON."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Put back what `get_state` returned."""

    def get_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays that must survive a restart."""
        return {}

    def set_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put back what `get_arrays` returned."""


class _Watcher(Callback):
    """Follows one column of the epoch's record and knows whether larger or smaller is better."""

    # A subclass with an `__init__` of its own need not call this one.
    monitor: str | None = None
    mode = "auto"
    min_delta = 0.0
    best = math.nan
    best_state: Mapping[str, np.ndarray] = {}
    """The whole state after the best epoch, if it is kept; empty before the first epoch has ended."""

    def __init__(self, monitor: str | None = None, *, mode: str = "auto", min_delta: float = 0.0) -> None:
        check_name("mode", mode, ("auto", "min", "max"))
        if not (monitor is None or isinstance(monitor, str)):
            raise ArgumentError(
                Diagnostic(A101, f"monitor is {monitor!r}", needed="the name of a column, such as val_loss")
            )
        check_number("min_delta", min_delta, type(self).__name__)
        self.monitor = monitor
        self.mode = mode
        self.min_delta = abs(min_delta)

    def on_fit_begin(self, run: Run) -> None:
        if self.monitor is not None and self.monitor not in run.columns:
            raise unknown_name("column to monitor", self.monitor, run.columns, place=type(self).__name__)
        if self.monitor is not None and self.mode == "auto":
            run.larger_is_better(self.monitor)  # refuses a metric that does not say it, before the first step

    def _column(self, run: Run, logs: Logs) -> str:
        """Return the monitored column: by default `val_loss` when there is validation data, else `loss`."""
        name = self.monitor or ("val_loss" if "val_loss" in logs else "loss")
        if name not in logs:
            numbers = [k for k, v in logs.items() if isinstance(v, (int, float))]
            raise unknown_name("column to monitor", name, numbers, place=type(self).__name__)
        return name

    def _improved(self, run: Run, logs: Logs) -> bool:
        name = self._column(run, logs)
        value = float(logs[name])
        larger = self.mode == "max" or (self.mode == "auto" and run.larger_is_better(name))
        if math.isnan(value):
            return False
        better = value > self.best + self.min_delta if larger else value < self.best - self.min_delta
        if better or math.isnan(self.best):
            self.best = value
            return True
        return False

    def _restore(self, run: Run) -> None:
        if self.best_state and run.finished:
            run.trainer.set_state(self.best_state)

    def get_arrays(self) -> dict[str, np.ndarray]:
        return dict(self.best_state)

    def set_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.best_state = dict(arrays)


class EarlyStopping(_Watcher):
    """Stops when the monitored column has not improved for `patience` epochs; puts the best state back if asked."""

    patience, waited, restore_best = 3, 0, False

    def __init__(
        self,
        monitor: str | None = None,
        *,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = False,
    ) -> None:
        check_count("patience", patience, "EarlyStopping")
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.patience = patience
        self.restore_best = restore_best

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        if self._improved(run, logs):
            self.waited = 0
            if self.restore_best:
                self.best_state = run.trainer.state
            return
        self.waited += 1
        if self.waited >= self.patience:
            run.stop(f"{self._column(run, logs)} has not improved for {self.waited} epochs (best {self.best:.6g})")

    def on_fit_end(self, run: Run) -> None:
        if self.restore_best:
            self._restore(run)

    def get_state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited = float(state["best"]), int(state["waited"])


class BestSoFar(_Watcher):
    """Keeps the state of the best epoch and puts it back when the run has finished.

    The state of the best epoch is in `best_state` at any time; `epoch` says which one it was.
    """

    restore, epoch = True, 0

    def __init__(self, monitor: str | None = None, *, mode: str = "auto", restore: bool = True) -> None:
        super().__init__(monitor, mode=mode)
        self.restore = restore

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        if self._improved(run, logs):
            self.epoch = int(logs["epoch"])
            self.best_state = run.trainer.state

    def on_fit_end(self, run: Run) -> None:
        if self.restore:
            self._restore(run)

    def get_state(self) -> dict[str, Any]:
        return {"best": self.best, "epoch": self.epoch}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.epoch = float(state["best"]), int(state["epoch"])


class KeepBest(_Watcher):
    """Keeps the checkpoint of the best epoch: `fit(checkpoint="run", keep_best=True)` writes it to `run/best`.

    `due` says that the epoch that has just ended is the best so far, and that its checkpoint is not written yet.
    """

    def __init__(self, monitor: str | None = None) -> None:
        super().__init__(monitor)
        self.epoch = 0
        self.due = False

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        if self._improved(run, logs):
            self.epoch, self.due = int(logs["epoch"]), True

    def get_state(self) -> dict[str, Any]:
        return {"best": self.best, "epoch": self.epoch}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.epoch = float(state["best"]), int(state["epoch"])


class ReduceOnPlateau(_Watcher):
    """Multiplies the learning rate by `factor` when the monitored column has not improved for `patience` epochs."""

    factor, patience, cooldown, min_rate = 0.1, 5, 0, 0.0
    waited, cooling = 0, 0

    def __init__(
        self,
        monitor: str | None = None,
        *,
        factor: float = 0.1,
        patience: int = 5,
        cooldown: int = 0,
        min_rate: float = 0.0,
        min_delta: float = 0.0,
        mode: str = "auto",
    ) -> None:
        check_number("factor", factor, "ReduceOnPlateau", above=0.0, below=1.0)
        check_count("patience", patience, "ReduceOnPlateau")
        check_count("cooldown", cooldown, "ReduceOnPlateau", low=0)
        check_number("min_rate", min_rate, "ReduceOnPlateau", low=0.0)
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.factor, self.patience, self.cooldown, self.min_rate = factor, patience, cooldown, min_rate

    def on_fit_begin(self, run: Run) -> None:
        super().on_fit_begin(run)
        run.require_learning_rate("ReduceOnPlateau")

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        improved = self._improved(run, logs)
        if self.cooling > 0:
            self.cooling -= 1
            self.waited = 0
        if improved:
            self.waited = 0
            return
        self.waited += 1
        if self.waited > self.patience - 1 and self.cooling == 0:
            rate = run.learning_rate
            reduced = max(rate * self.factor, self.min_rate)
            if reduced < rate:
                run.rate_factor *= reduced / rate
            self.waited = 0
            self.cooling = self.cooldown

    def get_state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "cooling": self.cooling}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited = float(state["best"]), int(state["waited"])
        self.cooling = int(state["cooling"])


def _check_function(name: str, function: object, of: str) -> None:
    if not callable(function):
        raise ArgumentError(Diagnostic(A101, f"{name} is {function!r}", needed=f"a function of {of}"))


class LearningRateSchedule(Callback):
    """Sets the learning rate from a function of the number of steps done."""

    def __init__(self, rate: Callable[[int], float]) -> None:
        _check_function("rate", rate, "the number of steps done")
        self.rate = rate

    def on_fit_begin(self, run: Run) -> None:
        run.require_learning_rate("LearningRateSchedule")
        run.schedule = self.rate


def as_callback(given: Any) -> Any:
    """Return a function of (run, logs), or of (logs), as a callback that calls it after each epoch; others as given."""
    if isinstance(given, (Callback, type)) or not callable(given):
        return given
    try:
        inspect.signature(given).bind(0, 0)
    except ValueError:  # some built-in functions have no signature
        return FunctionCallback(on_epoch_end=given)
    except TypeError:
        try:
            inspect.signature(given).bind(0)
        except TypeError:
            return given  # `fit` refuses it
        return FunctionCallback(on_epoch_end=lambda run, logs: given(logs))
    return FunctionCallback(on_epoch_end=given)


class FunctionCallback(Callback):
    """Calls plain functions: `FunctionCallback(on_epoch_end=lambda run, logs: …)`."""

    def __init__(
        self,
        on_step_end: Callable[[Run, Logs], None] | None = None,
        on_epoch_end: Callable[[Run, Logs], None] | None = None,
    ) -> None:
        for name, function in (("on_step_end", on_step_end), ("on_epoch_end", on_epoch_end)):
            if function is not None:
                _check_function(name, function, "(run, logs)")
        self._step, self._epoch = on_step_end, on_epoch_end

    def on_step_end(self, run: Run, logs: Logs) -> None:
        if self._step:
            self._step(run, logs)

    def on_epoch_end(self, run: Run, logs: Logs) -> None:
        if self._epoch:
            self._epoch(run, logs)
