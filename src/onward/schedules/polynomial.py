"""A rate that falls as a power of the remaining steps."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_count, check_number
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule, between, progress, ramp


@dataclasses.dataclass(frozen=True)
class Polynomial(Schedule):
    """end + (1 - end)·(1 - t/steps)^power, then constant: `PolynomialLR` of PyTorch, `PolynomialDecay` of Keras."""

    steps: int
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, "Polynomial")
        check_number("power", self.power, "Polynomial", above=0.0)
        check_number("end", self.end, "Polynomial", low=0.0)

    def factor(self, step: int) -> float:
        return float(self.end + (1.0 - self.end) * (1.0 - progress(step, 0, self.steps)) ** self.power)

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        left = op.Sub(1.0, ramp(op, step, 0, self.steps, like))
        return between(op, self.end, 1.0, op.Pow(left, self.power))
