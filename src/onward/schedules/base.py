"""The base class of schedules: a factor of the learning rate, as ONNX operators and as a number."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import onnx_ir as ir

from onward.arguments import check_number
from onward.graph.builder import Builder, Value


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """The learning rate as a function of the number of updates so far.

    The rate at a step is `learning_rate * factor(step)`. In the file, `learning_rate` is the algorithm's input of that
    name (with this schedule's value as its default) and the factor is computed from the step counter, so a caller may
    scale the whole schedule by feeding another `learning_rate`. Calling a schedule returns the same number in Python.

    >>> from onward.schedules import Step
    >>> [round(Step(0.1, every=2, gamma=0.5)(t), 3) for t in range(5)]
    [0.1, 0.1, 0.05, 0.05, 0.025]
    """

    learning_rate: float

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate, type(self).__name__, low=0.0)

    def __call__(self, step: int) -> float:
        """Return the learning rate of update number `step`, counted from 0."""
        return self.learning_rate * self.factor(step)

    def describe(self) -> dict[str, Any]:
        """Return name and settings as plain values."""

        def plain(value: Any) -> Any:
            if isinstance(value, Schedule):
                return value.describe()
            return [plain(v) for v in value] if isinstance(value, tuple) else value

        return {"name": type(self).__name__} | {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @abc.abstractmethod
    def factor(self, step: int) -> float:
        """Return the factor of the base rate at `step`."""

    @abc.abstractmethod
    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        """Return the factor as a scalar of the type of `like`; `step` is an int64 scalar."""


def ramp(op: Builder, step: Value, start: int, length: int, like: Value) -> Value:
    """Return how far `step` is between `start` and `start + length`, from 0 to 1, as a scalar of `like`'s type."""
    clipped = op.Clip(step, start, start + length)
    if start:
        clipped = op.Sub(clipped, start)
    return op.Div(op.cast(clipped, kind(like)), float(length))


def progress(step: int, start: int, length: int) -> float:
    """Return how far `step` is between `start` and `start + length`, from 0 to 1."""
    return min(max(step - start, 0), length) / length


def kind(like: Value) -> ir.DataType:
    """Return the element type of `like`, which must be known."""
    assert like.dtype is not None
    return like.dtype


def between(op: Builder, start: float, end: float, part: Value) -> Value:
    """Return start + (end - start)·part."""
    return op.Add(op.Mul(part, end - start), start)


def cosine(op: Builder, part: Value) -> Value:
    """Return (1 + cos(π·part)) / 2: 1 at 0, 0 at 1."""
    return op.Mul(op.Add(op.Cos(op.Mul(part, math.pi)), 1.0), 0.5)
