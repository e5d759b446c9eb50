"""A rate that moves in a straight line."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_count, check_number
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule, between, progress, ramp


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """From `start` to `end` times the rate over `steps` steps, then constant: `LinearLR` of PyTorch."""

    steps: int
    start: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, "Linear")
        check_number("start", self.start, "Linear", low=0.0)
        check_number("end", self.end, "Linear", low=0.0)

    def factor(self, step: int) -> float:
        return self.start + (self.end - self.start) * progress(step, 0, self.steps)

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        return between(op, self.start, self.end, ramp(op, step, 0, self.steps, like))
