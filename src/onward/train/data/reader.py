"""Deliver the batches of an epoch as feeds of the model: read, augment, match, mix; here or in worker processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from onward.backends import processes
from onward.errors import A101, ArgumentError, Diagnostic
from onward.reading.pool import Layout, WorkerPool, batch_layout, local_functions
from onward.reading.samples import Rows, Samples
from onward.reading.worker import views
from onward.train.data.arrays import to_array
from onward.train.data.augmenting import Augmenting, files_of
from onward.train.data.matching import Matching
from onward.train.data.mixing import partners
from onward.train.data.source import Batch, BatchRequest, ColumnSource, DataSource

_MANY_FILES = 512  # fewer are read before workers have started
_MOST_WORKERS = 8


def default_workers(source: DataSource, samples: Samples) -> int:
    """Return how many worker processes should read: some where image files are decoded and there are cores to spare.

    A function of the script itself is not sent to workers unless asked for: the script might not bear an import.
    """
    files = isinstance(source, ColumnSource) and any(f.reader is not None for f in samples.fields)
    if not files or (source.size or 0) < _MANY_FILES or local_functions(samples):
        return 0
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        cores = os.cpu_count() or 1
    return min(cores // 2 // processes.world_size(), _MOST_WORKERS) if cores > 2 else 0


@dataclasses.dataclass
class _Plan:
    """The samples of one batch: `count` of its own, then those that it needs as partners."""

    rows: Rows
    count: int
    total: int
    partner: np.ndarray | None = None


@dataclasses.dataclass
class _Begun:
    """A batch whose rows are being filled."""

    plan: _Plan
    batch: Batch
    parts: list[concurrent.futures.Future[None]] = dataclasses.field(default_factory=list)
    start: int | None = None  # where it lies in the shared memory


class Reader:
    """Gives the batches of an epoch as feeds. Use it as a context manager: it ends its worker processes.

    The feeds depend on the data, the seed and the epoch; the number of workers does not change a bit of them.

    Raises:
        ArgumentError: workers for data that cannot be read in any order.
    """

    def __init__(
        self, source: DataSource, matching: Matching, augmenting: Augmenting, workers: int | None, ahead: int
    ) -> None:
        self._source = source
        self._matching = matching
        self._augmenting = augmenting
        self.workers = default_workers(source, augmenting.samples) if workers is None else workers
        self._ahead = max(ahead, 1) + 1
        self._pool: WorkerPool | None = None
        self._open: Iterator[Batch] | None = None
        self._slot = 0
        if self.workers and not isinstance(source, ColumnSource):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"workers is {self.workers}, and an iterable reads its data itself",
                    needed="workers=0, or arrays, files or a folder",
                    hint="give the iterable workers of its own, as DataLoader(num_workers=…)",
                )
            )
        if not augmenting.samples.fields:
            self.workers = 0  # nothing would be left for them to do

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def start(self, batch_size: int) -> None:
        """Start the worker processes, so that what is wrong with them is said before the first step."""
        if not self.workers or self._pool is not None:
            return
        mixer = self._augmenting.mixer
        rows = batch_size if mixer is None else 2 * batch_size
        _, self._slot = batch_layout(self._shapes(), rows, 0)
        self._pool = WorkerPool(self.workers, self._augmenting.samples, self._slot * self._ahead)

    def try_one(self, request: BatchRequest) -> None:
        """Read and augment the first sample of the epoch, so that an augmentation that fails does so now."""
        if self._augmenting.is_plain or not isinstance(self._source, ColumnSource):
            return
        first = dataclasses.replace(request, batch_size=1, start=0, drop_last=False, part=0, parts=1)
        for plan in self._plans(self._source, first):
            self._finish(self._begin(self._source, plan, None))
            return

    def feeds(self, request: BatchRequest) -> Iterator[Batch]:
        """Yield the feeds of the batches that the request asks for."""
        if self._augmenting.is_plain and not self.workers:
            return map(self._matching.make, self._source.batches(request))
        if not isinstance(self._source, ColumnSource):
            return self._augmented_batches(request)
        if self._open is not None:
            self._open.close()  # type: ignore[attr-defined]  # it is a generator
        self.start(request.batch_size)
        self._open = self._read(self._source, request)
        return self._open

    # ------------------------------------------------------------------ samples that can be read in any order

    def _read(self, source: ColumnSource, request: BatchRequest) -> Iterator[Batch]:
        plans = self._plans(source, request)
        if self._pool is None:
            for plan in plans:
                yield self._finish(self._begin(source, plan, None))
            return
        free = deque(self._slot * i for i in range(self._ahead))
        waiting: deque[_Begun] = deque()
        try:
            while True:
                while free and (following := next(plans, None)) is not None:
                    waiting.append(self._begin(source, following, free.popleft()))
                if not waiting:
                    return
                begun = waiting.popleft()
                feeds = self._finish(begun)
                assert begun.start is not None
                free.append(begun.start)
                yield feeds
        finally:  # nobody wants the batches that are still being read; their memory must be free before its next use
            for part in (part for begun in waiting for part in begun.parts):
                with contextlib.suppress(concurrent.futures.CancelledError):
                    part.exception()

    def _plans(self, source: ColumnSource, request: BatchRequest) -> Iterator[_Plan]:
        given = source.order(request)
        order = np.arange(source.size) if given is None else given
        occurrences = _occurrences(order)
        mixer = self._augmenting.mixer
        for own, total in source.places(request, len(order)):
            places = np.arange(own.start, own.stop)
            count, partner = len(places), None
            if mixer is not None:
                shuffled, size = given is not None, len(order)
                partner = partners(places, size, shuffled=shuffled, seed=request.seed, epoch=request.epoch)
                outside = np.setdiff1d(partner, places)
                inside = (partner >= own.start) & (partner < own.stop)
                partner = np.where(inside, partner - own.start, count + np.searchsorted(outside, partner))
                places = np.concatenate([places, outside])
            indices = order[places]
            files = {
                f.column: found[1]
                for f in self._augmenting.samples.fields
                if (found := files_of(source.columns[f.column], indices)) is not None
            }
            rows = Rows(request.seed, request.epoch, indices, occurrences[places], files)
            yield _Plan(rows, count, total if request.parts > 1 else 0, partner)

    def _shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        return {f.column: (f.shape, f.dtype) for f in self._augmenting.samples.fields}

    def _begin(self, source: ColumnSource, plan: _Plan, start: int | None) -> _Begun:
        """Read what is in memory, and let the workers do the rest; without workers, do it here."""
        samples, indices = self._augmenting.samples, plan.rows.indices
        count = len(indices)
        layout: Layout = {}
        if self._pool is not None and start is not None:
            layout, _ = batch_layout(self._shapes(), count, start)
            arrays = views(self._pool.memory, layout, count)
        else:
            arrays = {name: np.empty((count, *shape), dtype) for name, (shape, dtype) in self._shapes().items()}
        batch: Batch = {}
        for name, column in source.columns.items():
            if name not in arrays:
                batch[name] = column.take(indices)
            elif name not in plan.rows.files:
                arrays[name][:] = column.take(indices)
        begun = _Begun(plan, {**batch, **arrays}, start=start)
        if self._pool is None or start is None:
            samples.fill(arrays, plan.rows)
            return begun
        for part in range(self.workers):
            rows = processes.share(count, part, self.workers)
            if rows.stop > rows.start:
                part_rows = plan.rows.part(rows.start, rows.stop)
                begun.parts.append(self._pool.submit(layout, count, rows.start, rows.stop, part_rows))
        return begun

    def _finish(self, begun: _Begun) -> Batch:
        """Return the feeds of a batch once its rows are filled; they share no memory with it."""
        for part in begun.parts:
            part.result()
        feeds = self._matching.make(begun.batch)
        plan = begun.plan
        if self._augmenting.mixer is not None and plan.partner is not None:
            feeds = self._augmenting.mixer.mix(feeds, plan.rows, plan.partner)
        elif self._pool is not None:
            feeds = {n: a.copy() if np.may_share_memory(a, self._pool.memory) else a for n, a in feeds.items()}
        return {n: processes.Rows.of(a, plan.total) for n, a in feeds.items()} if plan.total else feeds

    # ------------------------------------------------------------------ batches from elsewhere

    def _augmented_batches(self, request: BatchRequest) -> Iterator[Batch]:
        """Yield the feeds of batches that come from an iterable: a sample's number is that of its batch and its row."""
        samples, mixer = self._augmenting.samples, self._augmenting.mixer
        for number, given in enumerate(self._source.batches(request), request.start):
            batch = {name: to_array(value, f"`{name}` of a batch") for name, value in _named(given).items()}
            arrays = {f.column: np.array(batch[f.column]) for f in samples.fields if f.column in batch}
            count = max((len(a) for a in batch.values() if a.ndim), default=0)
            indices = number * (1 << 32) + np.arange(count, dtype=np.int64)
            rows = Rows(request.seed, request.epoch, indices, np.zeros(count, np.int64), {})
            if len(arrays) == len(samples.fields):  # else the matching says what is missing
                samples.fill(arrays, rows)
            feeds = self._matching.make({**batch, **arrays})
            yield feeds if mixer is None else mixer.mix(feeds, rows, (np.arange(count) + 1) % max(count, 1))


def _named(batch: Any) -> Mapping[str, Any]:
    return batch if isinstance(batch, Mapping) else {}


def _occurrences(order: np.ndarray) -> np.ndarray:
    """Return how often each number has come before.

    >>> _occurrences(np.array([3, 1, 3, 3, 1])).tolist()
    [0, 0, 1, 2, 1]
    """
    by_value = np.argsort(order, kind="stable")
    values = order[by_value]
    is_first = np.concatenate([[True], values[1:] != values[:-1]]) if len(order) else np.zeros(0, bool)
    starts = np.flatnonzero(is_first)
    counts = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    found = np.empty(len(order), np.int64)
    found[by_value] = counts
    return found
