"""The same rate at every step."""

from __future__ import annotations

import dataclasses

from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """The same rate at every step: factor(t) = 1."""

    def factor(self, step: int) -> float:
        return 1.0

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        return op.constant(1.0, like.dtype)
