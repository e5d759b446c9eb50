"""Ctrl-C during a step: it must neither get lost nor leave half of an update.

Python raises KeyboardInterrupt wherever the main thread is. LLVM calls back into Python while numba compiles, and an
exception in such a callback is printed and dropped: the user would press Ctrl-C and nothing would happen. Between two
parts of an update it would leave a state that is neither the old one nor the new one.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt after the block, if Ctrl-C came inside it. Another handler is left alone."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
