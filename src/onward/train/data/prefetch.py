"""Prepare the next batches on a thread while the model trains on the current one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np

from onward.train.data.source import ArrayColumn, Batch, BatchRequest, ColumnSource, DataSource

T = TypeVar("T")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    pass


def default_prefetch(source: DataSource, batch_size: int) -> int:
    """Return how many batches a thread should prepare ahead; 0 where a thread would cost more time than it saves."""
    if not isinstance(source, ColumnSource):
        return 2
    arrays = [c.array for c in source.columns.values() if isinstance(c, ArrayColumn)]
    in_memory = len(arrays) == len(source.columns) and not any(isinstance(a, np.memmap) for a in arrays)
    size = sum(a.itemsize * a[:1].size for a in arrays) * batch_size
    return 0 if in_memory and size < 1 << 19 else 2


def read_ahead(source: DataSource, batch_size: int) -> Iterator[Batch]:
    """Yield the batches of the source in its order; a thread reads ahead where that saves time."""
    batches = source.batches(BatchRequest(batch_size))
    with Prefetcher(batches, default_prefetch(source, batch_size)) as ready:
        yield from ready


class Prefetcher(Generic[T]):
    """Iterates over `items`; a thread prepares `depth` of them ahead. Use it as a context manager.

    An error of the thread is raised here, at its place in the order. `poll` is called about five times a second while
    waiting, so that a signal is answered even when the data is slow. With depth 0 there is no thread.
    """

    def __init__(self, items: Iterator[T], depth: int = 2, poll: Callable[[], None] = lambda: None) -> None:
        self._items = items
        self._poll = poll
        self._stop = threading.Event()
        self._queue: queue.Queue[T | _Failure | _End] = queue.Queue(maxsize=max(depth, 1))
        self._thread = threading.Thread(target=self._fill, name="onward-prefetch", daemon=True) if depth > 0 else None

    def __enter__(self) -> Prefetcher[T]:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._thread and self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _put(self, item: T | _Failure | _End) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def _fill(self) -> None:
        try:
            for item in self._items:
                if not self._put(item):
                    return
            self._put(_End())
        except BaseException as error:  # noqa: BLE001 -- the consumer raises it
            self._put(_Failure(error))

    def __iter__(self) -> Iterator[T]:
        if self._thread is None:
            yield from self._items
            return
        while True:
            try:
                item = self._queue.get(timeout=0.2)
            except queue.Empty:
                self._poll()
                continue
            if isinstance(item, _End):
                return
            if isinstance(item, _Failure):
                raise item.error
            yield item
