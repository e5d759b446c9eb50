"""A rate that falls by a constant factor per step."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_count, check_number
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule, kind


@dataclasses.dataclass(frozen=True)
class Exponential(Schedule):
    """factor(t) = gamma ^ (t / every): `ExponentialLR` of PyTorch, `ExponentialDecay` of Keras."""

    gamma: float
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("gamma", self.gamma, "Exponential", above=0.0)
        check_count("every", self.every, "Exponential")

    def factor(self, step: int) -> float:
        return float(self.gamma ** (step / self.every))

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        time = op.cast(step, kind(like))
        if self.every != 1:
            time = op.Div(time, float(self.every))
        return op.Pow(op.constant(self.gamma, like.dtype), time)
