"""SIGTERM and Ctrl-C during training: finish the step, save, then exit."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequested(BaseException):
    """A signal asked the run to end; raised only at points where the run can be saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run after a whole step: the state of the trainer is the one after that step."""


_DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class StopSignals:
    """While active, records SIGTERM and SIGINT instead of exiting; `poll` raises `StopRequested` for them.

    The handler only sets a flag. An exception would be lost if the signal came while C code calls back into Python, as
    a compiler does: Python prints and drops it. A second Ctrl-C also interrupts at once; if that is lost, the flag
    still ends the run after the step.

    A run that saves checkpoints always handles both signals. Another one leaves handlers of the caller's own in place.
    Outside the main thread, where Python does not allow handlers, nothing is changed.
    """

    def __init__(self, saves: bool) -> None:
        self._saves = saves
        self._previous: dict[int, Any] = {}
        self._requested: int | None = None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if self._saves or signal.getsignal(number) is default:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._requested is not None:
            raise KeyboardInterrupt
        self._requested = number

    def poll(self) -> None:
        """Raise `StopRequested` if a signal has come."""
        if self._requested is not None:
            raise StopRequested(self._requested)
