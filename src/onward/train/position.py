"""How far a run has come."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass
class Position:
    """The place of a run in its data, and its counters. `batch` of `epoch` is the next one to train on."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    samples: int = 0
    sums: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # name -> [weighted sum, weight]
    rate_factor: float = 1.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    finished: bool = False

    def phase(self, phases: Mapping[str, int]) -> str | None:
        """Return the one of `phases` (name → number of epochs) that the position is in; the last one has no end."""
        begin, found = 0, None
        for name, epochs in phases.items():
            if found is None or self.epoch >= begin:
                found = name
            begin += epochs
        return found

    def add(self, name: str, value: float, weight: int) -> None:
        """Add the mean of one batch of `weight` samples to the mean of the epoch."""
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] += value * weight
        entry[1] += weight

    def begin_epoch(self, epoch: int) -> None:
        """Move to the beginning of `epoch`."""
        self.epoch, self.batch, self.seconds, self.samples = epoch, 0, 0.0, 0
        self.sums = {}
