"""A rate that falls by a factor at regular intervals."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_count, check_number
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule, kind


@dataclasses.dataclass(frozen=True)
class Step(Schedule):
    """factor(t) = gamma ^ floor(t / every), as `torch.optim.lr_scheduler.StepLR`."""

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("every", self.every, "Step")
        check_number("gamma", self.gamma, "Step", low=0.0)

    def factor(self, step: int) -> float:
        return float(self.gamma ** (step // self.every))

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        count = op.Div(step, self.every)  # integer division; the counter is never negative
        return op.Pow(op.constant(self.gamma, like.dtype), op.cast(count, kind(like)))
