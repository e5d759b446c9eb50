"""What processes compare before they train together, and what they decide alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.backends.processes import Rows, share
from onward.errors import ArgumentError
from onward.train.numeric import NumericGuard

torch = pytest.importorskip("torch")
from onward.backends.torch.distributed import Group  # noqa: E402  # only with torch


class Two(Group):
    """A process beside another one whose digest is known."""

    def __init__(self, other: Any = None) -> None:
        self.device, self.other, self.sent = torch.device("cpu"), other, None

    def add(self, value: Any, operation: Any = None) -> Any:
        self.sent = value
        return value if self.other is None else torch.maximum(value, self.other)


def digest(feeds: dict[str, Any]) -> Any:
    process = Two()
    process._check_same(feeds)
    return process.sent


def test_a_batch_with_nan_is_the_same_batch() -> None:
    feeds = {"x": np.array([[1.0, np.nan], [np.inf, -np.inf]], np.float32)}

    Two(digest(feeds))._check_same(feeds)


def test_other_numbers_are_another_batch() -> None:
    with pytest.raises(ArgumentError, match="different batches"):
        Two(digest({"x": np.ones(3)}))._check_same({"x": np.array([1.0, 1.0, 2.0])})


def test_parts_of_one_batch_are_the_same_batch() -> None:
    x = np.arange(14.0).reshape(7, 2)
    first, second = ({"x": Rows.of(x[share(7, part, 2)], 7)} for part in range(2))

    Two(digest(first))._check_same(second)


class Nothing:
    processes = 2


def test_processes_with_parts_of_unequal_size_take_their_copies_at_the_same_steps() -> None:
    x = np.arange(14.0).reshape(7, 2)
    guards = []
    for part in range(2):
        guard = NumericGuard(Nothing())  # type: ignore[arg-type]  # no step is run
        guard._hold(1, {"x": Rows.of(x[share(7, part, 2)], 7), "rate": np.float32(1)}, None)  # type: ignore[dict-item]
        guards.append(guard)

    assert guards[0]._held_bytes == guards[1]._held_bytes == x.nbytes + 4
