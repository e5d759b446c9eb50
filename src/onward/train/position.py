"""How far a run has come."""

from __future__ import annotations

import dataclasses


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

    def add(self, name: str, value: float, weight: int) -> None:
        """Add the mean of one batch of `weight` samples to the mean of the epoch."""
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] += value * weight
        entry[1] += weight

    def begin_epoch(self, epoch: int) -> None:
        """Move to the beginning of `epoch`."""
        self.epoch, self.batch, self.seconds, self.samples = epoch, 0, 0.0, 0
        self.sums = {}
