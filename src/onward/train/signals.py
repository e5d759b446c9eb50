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


class StopSignals:
    """While active, records SIGTERM and SIGINT instead of exiting; `poll` raises `StopRequested` for them.

    A second Ctrl-C interrupts at once. Outside the main thread, where Python does not allow handlers, and when not
    `enabled`, nothing is changed.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._previous: dict[int, Any] = {}
        self._requested: int | None = None

    def __enter__(self) -> StopSignals:
        if self._enabled:
            for number in (signal.SIGTERM, signal.SIGINT):
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
