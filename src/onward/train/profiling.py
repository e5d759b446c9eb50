"""Take the profile of a training step: a batch of the data, or one that is made up, and the backend's measurement."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from onward.arguments import check_names, whole
from onward.compiler.make_self_test import made_up_batches
from onward.errors import A101, ArgumentError, BackendError, Diagnostic
from onward.train.data.source import BatchRequest, no_batches
from onward.train.profile import Profile

if TYPE_CHECKING:
    from onward.train.data.matching import Matching
    from onward.train.data.source import DataSource
    from onward.train.trainer import Trainer

A142 = "A142"


def take_profile(
    trainer: Trainer,
    data: tuple[DataSource, Matching] | None,
    *,
    title: str,
    backend: str,
    batch_size: int,
    steps: int,
    entry: str,
    sizes: Mapping[str, int],
) -> Profile:
    """Return the profile of `steps` steps; without data, on a batch of made-up numbers, whose free sizes are `sizes`.

    Raises:
        ArgumentError: the step runs with no made-up batch, so it needs data; or there are data and sizes.
    """
    sizes = {name: whole(f"sizes[{name!r}]", size, 1) for name, size in sizes.items()}
    if data is not None and sizes:
        text = "the sizes of a made-up batch are given, and data as well"
        raise ArgumentError(Diagnostic(A101, text, found=f"sizes={sizes}", hint="leave one of them out"))
    feeds: Mapping[str, np.ndarray]
    if data is not None:
        feeds, seconds = _read(*data, batch_size, steps)
    else:
        feeds, seconds = _made_up(trainer, batch_size, entry, sizes), []
    measured = trainer.session.measure(feeds, entry=entry, steps=steps)
    return Profile(title, backend, {n: np.shape(v) for n, v in feeds.items()}, measured, seconds)


def _read(
    source: DataSource, matching: Matching, batch_size: int, most: int
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Return the first batch, and the seconds that it took to read and prepare each of the first few."""
    first: dict[str, np.ndarray] | None = None
    seconds = []
    began = time.perf_counter()
    for batch in itertools.islice(source.batches(BatchRequest(batch_size)), most):
        made = matching.make(batch)
        seconds.append(time.perf_counter() - began)
        first = made if first is None else first
        began = time.perf_counter()
    if first is None:
        raise no_batches("the profile")
    return first, seconds


def _made_up(trainer: Trainer, batch_size: int, entry: str, sizes: Mapping[str, int]) -> Mapping[str, np.ndarray]:
    """Return the first batch of made-up numbers with which a step runs; the state stays as it is."""
    program = trainer.program.for_entry(entry)
    free = {str(d): None for s in (*program.inputs, *program.targets) for d in s.shape if isinstance(d, str)}
    check_names("free size", sizes, free, place="sizes=")
    before = trainer.state
    reason = "its inputs take text, or another type that cannot be made up"
    for batch in made_up_batches(program, batch_size, sizes):
        try:
            trainer.session.step(batch, entry=entry)
        except BackendError as error:
            reason = error.diagnostics[0].message
        else:
            return batch
        finally:
            trainer.set_state(before)
    raise ArgumentError(
        Diagnostic(
            A142,
            f"no batch for the profile can be made up: {reason}",
            needed="a batch with which one step of the training entry runs",
            hint="give some of your data",
        )
    )
