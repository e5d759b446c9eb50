"""Rates that fall along half a cosine, once or again and again."""

from __future__ import annotations

import dataclasses
import math

from onward.model.builder import Builder, Value
from onward.schedules.base import Schedule, between, check_count, check_number, cosine, kind, progress, ramp


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """From 1 to `end` times the rate over `steps` steps along a cosine, then constant.

    `CosineAnnealingLR` of PyTorch with `eta_min = end * rate`, up to its `T_max`; see `CosineAnnealing` for beyond.
    """

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, "Cosine")
        check_number("end", self.end, "Cosine", low=0.0)

    def factor(self, step: int) -> float:
        return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * progress(step, 0, self.steps))) / 2.0

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        return between(op, self.end, 1.0, cosine(op, ramp(op, step, 0, self.steps, like)))


@dataclasses.dataclass(frozen=True)
class CosineAnnealing(Schedule):
    """`CosineAnnealingLR` of PyTorch: down to `end` times the rate in `steps` steps, up again in the next, for ever."""

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, "CosineAnnealing")
        check_number("end", self.end, "CosineAnnealing", low=0.0)

    def factor(self, step: int) -> float:
        return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * (step % (2 * self.steps)) / self.steps)) / 2.0

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        part = op.Div(op.cast(op.Mod(step, 2 * self.steps), kind(like)), float(self.steps))
        return between(op, self.end, 1.0, cosine(op, part))
