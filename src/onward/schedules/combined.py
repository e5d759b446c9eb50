"""Combined schedules: one after the other, or multiplied."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from onward.arguments import check_count
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class _Combined(Schedule):
    """A learning rate and other schedules, of which only the factors are used."""

    parts: Sequence[Schedule]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts or not all(isinstance(part, Schedule) for part in self.parts):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"the parts of `{type(self).__name__}` are not schedules",
                    found=repr(self.parts),
                    needed="one schedule or more, of onward.schedules",
                )
            )


@dataclasses.dataclass(frozen=True)
class Sequential(_Combined):
    """One schedule after the other: part i + 1 begins, at its own step 0, with step `boundaries[i]`.

    `SequentialLR` of PyTorch. Only the factors of the parts are used: the rate is this schedule's.

    >>> from onward.schedules import Constant, Cosine, Linear
    >>> schedule = Sequential(0.1, [Linear(1, 10, start=0.1, end=1.0), Constant(1), Cosine(1, 20)], [10, 50])
    >>> [round(schedule(t), 3) for t in (0, 10, 49, 50, 60, 70)]
    [0.01, 0.1, 0.1, 0.1, 0.05, 0.0]
    """

    boundaries: Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        for boundary in self.boundaries:
            check_count("boundaries", boundary, "Sequential")
        rising = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if len(self.boundaries) != len(self.parts) - 1 or not rising:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the boundaries of `Sequential` do not match its parts",
                    found=f"{len(self.parts)} parts, boundaries {list(self.boundaries)}",
                    needed="rising boundaries, one between each two parts",
                )
            )

    def factor(self, step: int) -> float:
        begun = sum(step >= boundary for boundary in self.boundaries)
        return self.parts[begun].factor(step - ((0, *self.boundaries)[begun]))

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        current = self.parts[0].emit(op, step, like)
        for boundary, part in zip(self.boundaries, self.parts[1:], strict=True):
            later = part.emit(op, op.Max(op.Sub(step, boundary), 0), like)
            current = op.Where(op.GreaterOrEqual(step, boundary), later, current)
        return current


@dataclasses.dataclass(frozen=True)
class Product(_Combined):
    """The product of the factors of several schedules: `ChainedScheduler` of PyTorch, for factors without a floor.

    >>> from onward.schedules import Exponential, Warmup
    >>> schedule = Product(0.1, [Warmup(1, 4), Exponential(1, gamma=0.5)])
    >>> [round(schedule(t), 4) for t in range(5)]
    [0.0, 0.0125, 0.0125, 0.0094, 0.0063]
    """

    def factor(self, step: int) -> float:
        return math.prod(part.factor(step) for part in self.parts)

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        first, *rest = (part.emit(op, step, like) for part in self.parts)
        for factor in rest:
            first = op.Mul(first, factor)
        return first
