"""Threads that help with one compiled loop, chunk by chunk.

A thread that sleeps wakes within 20 to 100 microseconds, which is as long as a small update takes. So the caller begins
at once, helpers take chunks as they come, and a helper that comes too late finds none left: nobody waits for it.
"""

from __future__ import annotations

import functools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

Job = tuple[Callable[..., None], np.ndarray, tuple[Any, ...]]


class Team:
    """`helpers` threads beside the caller; they sleep between two runs and end with the team."""

    def __init__(self, helpers: int) -> None:
        self._helpers = helpers
        self._jobs: queue.SimpleQueue[Job | None] | None = None

    def run(self, function: Callable[..., None], chunks: int, arguments: tuple[Any, ...]) -> None:
        """Call `function(progress, awaited, *arguments)` here and in each helper; return when all chunks are done.

        `progress` is new for each run, so a helper of the run before cannot take chunks of this one.
        """
        progress = np.zeros(2, np.int64)
        if self._helpers:
            jobs = self._jobs or self._start()
            for _ in range(self._helpers):
                jobs.put((function, progress, arguments))
        function(progress, chunks, *arguments)

    def _start(self) -> queue.SimpleQueue[Job | None]:
        jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._jobs = jobs
        for _ in range(self._helpers):
            threading.Thread(target=_help, args=(jobs,), name="onward-update", daemon=True).start()
        weakref.finalize(self, _stop, jobs, self._helpers)
        return jobs


def _help(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        function, progress, arguments = job
        function(progress, 0, *arguments)
        del job, function, arguments  # they hold the arrays of a session, which may end meanwhile


def _stop(jobs: queue.SimpleQueue[Job | None], helpers: int) -> None:
    for _ in range(helpers):
        jobs.put(None)


def __getattr__(name: str) -> Any:
    """Return `count` or `read`, for compiled functions; numba is imported only then."""
    if name in ("count", "read"):
        return _atomics()[name]
    raise AttributeError(name)


@functools.cache
def _atomics() -> dict[str, Any]:
    """Return `count(counters, k)`, which adds one and returns what was there before, and `read(counters, k)`."""
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    def adding(amount: int) -> Any:
        def define(typing: Any, counters: Any, index: Any) -> Any:
            del typing

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                array = context.make_array(signature.args[0])(context, builder, arguments[0])
                place = context.cast(builder, arguments[1], signature.args[1], types.intp)
                pointer = cgutils.get_item_pointer(context, builder, signature.args[0], array, [place])
                number = ir.Constant(ir.IntType(64), amount)
                return builder.atomic_rmw("add", pointer, number, "seq_cst")

            return types.int64(counters, index), generate

        return intrinsic(define)

    return {"count": adding(1), "read": adding(0)}
