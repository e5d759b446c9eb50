"""Rates that fall along half a cosine, once or repeatedly."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onward.arguments import check_count, check_number
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule, between, cosine, kind, progress, ramp


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """From 1 to `end` times the rate over `steps` steps along a cosine, then constant.

    `CosineAnnealingLR` of PyTorch with `eta_min = end * rate`, until `T_max`. For later steps see `CosineAnnealing`.
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
    """`CosineAnnealingLR` of PyTorch: down to `end` times the rate in `steps` steps, then up again, and so on."""

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


@dataclasses.dataclass(frozen=True)
class CosineRestarts(Schedule):
    """From 1 to `end` times the rate along a cosine in `steps` steps, then again from 1 in `growth` times as many, …

    `CosineAnnealingWarmRestarts` of PyTorch with T_0 = `steps`, T_mult = `growth` and eta_min = `end` times the rate.

    >>> [round(CosineRestarts(0.1, steps=2, growth=2)(t), 3) for t in range(7)]
    [0.1, 0.05, 0.1, 0.085, 0.05, 0.015, 0.1]
    """

    steps: int
    growth: int = 1
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, "CosineRestarts")
        check_count("growth", self.growth, "CosineRestarts")
        check_number("end", self.end, "CosineRestarts", low=0.0)

    def _cycles(self) -> list[tuple[int, int]]:
        """Return the begin and length of each growing cycle, up to a step that no run reaches."""
        begin, length, found = 0, self.steps, []
        while begin < _NEVER:
            found.append((begin, length))
            begin, length = begin + length, length * self.growth
        return found

    def factor(self, step: int) -> float:
        if self.growth == 1:
            begin, length = step - step % self.steps, self.steps
        else:
            begin, length = next(c for c in reversed(self._cycles()) if step >= c[0])
        return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * (step - begin) / length)) / 2.0

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        if self.growth == 1:
            part = op.Div(op.cast(op.Mod(step, self.steps), kind(like)), float(self.steps))
            return between(op, self.end, 1.0, cosine(op, part))
        begins, lengths = (np.array(column) for column in zip(*self._cycles(), strict=True))
        begun = op.cast(op.GreaterOrEqual(step, begins), ir.DataType.INT64)
        number = op.Sub(op.ReduceSum(begun, keepdims=0), 1)
        here = op.cast(op.Sub(step, op.Gather(begins, number)), kind(like))
        return between(op, self.end, 1.0, cosine(op, op.Div(here, op.cast(op.Gather(lengths, number), kind(like)))))


_NEVER = 2**53  # steps
