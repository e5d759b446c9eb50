"""A rate that rises before another schedule begins."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_count, check_number
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule, between, progress, ramp


@dataclasses.dataclass(frozen=True)
class Warmup(Schedule):
    """From `start` to 1 times the rate over `steps` steps, then `learning_rate`: a number or another schedule.

    `SequentialLR([LinearLR(start_factor=start, total_iters=steps), other], milestones=[steps])` of PyTorch.

    >>> from onward.schedules import Cosine
    >>> schedule = Warmup(Cosine(0.1, steps=100), steps=10)
    >>> schedule(0), schedule(5), schedule(10), round(schedule(60), 6)
    (0.0, 0.05, 0.1, 0.05)
    """

    learning_rate: float | Schedule  # type: ignore[assignment]  # __post_init__ makes it a number
    steps: int
    start: float = 0.0
    after: Schedule | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, Schedule):
            object.__setattr__(self, "after", self.learning_rate)
            object.__setattr__(self, "learning_rate", self.learning_rate.learning_rate)
        super().__post_init__()
        check_count("steps", self.steps, "Warmup")
        check_number("start", self.start, "Warmup", low=0.0)

    def factor(self, step: int) -> float:
        if step < self.steps:
            return self.start + (1.0 - self.start) * progress(step, 0, self.steps)
        return 1.0 if self.after is None else self.after.factor(step - self.steps)

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        rising = between(op, self.start, 1.0, ramp(op, step, 0, self.steps, like))
        if self.after is None:
            return rising
        later = op.Max(op.Sub(step, self.steps), 0)
        return op.Where(op.Less(step, self.steps), rising, self.after.emit(op, later, like))
