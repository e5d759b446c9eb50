"""Ctrl-C during a step: it must neither get lost nor leave half of an update.

Python raises KeyboardInterrupt wherever the main thread is. LLVM calls back into Python while numba compiles, and an
exception in such a callback is printed and dropped: the user would press Ctrl-C and nothing would happen. Between two
parts of an update it would leave a state that is neither the old one nor the new one.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

try:  # what `signal` wraps in enumerations; the wrappers take 6 µs, as much as the graph of a small model
    import _signal as fast  # type: ignore[import-not-found]
except ImportError:
    fast = signal


class InterruptsKept:
    """Raise KeyboardInterrupt after the block, if Ctrl-C came inside it. Another handler is left alone."""

    __slots__ = ("_came", "_in_charge")

    def __enter__(self) -> None:
        self._came = False
        in_main = threading.current_thread() is threading.main_thread()
        self._in_charge = in_main and fast.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._in_charge:
            fast.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._in_charge:
            return
        fast.signal(signal.SIGINT, signal.default_int_handler)
        if self._came and error is None:
            raise KeyboardInterrupt
