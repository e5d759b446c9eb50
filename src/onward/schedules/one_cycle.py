"""A rate that rises to its peak and falls to almost 0."""

from __future__ import annotations

import dataclasses
import math

from onward.arguments import check_count, check_number
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule, between, cosine, kind


@dataclasses.dataclass(frozen=True)
class OneCycle(Schedule):
    """`OneCycleLR` of PyTorch with cosine annealing: `learning_rate` is the peak.

    From 1/divide up to 1 in the first `rise · steps` steps, then down to 1/(divide·final_divide).
    """

    steps: int
    rise: float = 0.3
    divide: float = 25.0
    final_divide: float = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, "OneCycle", low=2)
        check_number("rise", self.rise, "OneCycle", above=0.0, high=1.0)
        check_number("rise * steps", self.rise * self.steps, "OneCycle", above=1.0)
        check_number("divide", self.divide, "OneCycle", above=0.0)
        check_number("final_divide", self.final_divide, "OneCycle", above=0.0)

    @property
    def _peak(self) -> float:
        return self.rise * self.steps - 1.0

    def factor(self, step: int) -> float:
        first, last = 1.0 / self.divide, 1.0 / (self.divide * self.final_divide)
        if step <= self._peak:
            return _annealed(first, 1.0, step / self._peak)
        return _annealed(1.0, last, min((step - self._peak) / (self.steps - 1.0 - self._peak), 1.0))

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        first, last = 1.0 / self.divide, 1.0 / (self.divide * self.final_divide)
        time = op.cast(op.Min(step, self.steps - 1), kind(like))
        up = op.Min(op.Div(time, self._peak), 1.0)
        down = op.Max(op.Div(op.Sub(time, self._peak), self.steps - 1.0 - self._peak), 0.0)
        rising = between(op, 1.0, first, cosine(op, up))
        falling = between(op, last, 1.0, cosine(op, down))
        return op.Where(op.LessOrEqual(time, self._peak), rising, falling)


def _annealed(start: float, end: float, part: float) -> float:
    return end + (start - end) / 2.0 * (1.0 + math.cos(math.pi * part))
