"""A rate with a constant factor for each interval."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.arguments import check_count, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Piecewise(Schedule):
    """1 before the first boundary, then `factors[i]` from step `boundaries[i]` on.

    `MultiStepLR` of PyTorch with factors gamma, gamma², …; `PiecewiseConstantDecay` of Keras counts a boundary to the
    interval before it, so pass its boundaries plus one.
    """

    boundaries: Sequence[int]
    factors: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        object.__setattr__(self, "factors", tuple(self.factors))
        for boundary in self.boundaries:
            check_count("boundaries", boundary, "Piecewise", low=0)
        for factor in self.factors:
            check_number("factors", factor, "Piecewise", low=0.0)
        rising = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if not self.boundaries or len(self.boundaries) != len(self.factors) or not rising:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the boundaries and factors of `Piecewise` do not match",
                    found=f"boundaries {list(self.boundaries)}, factors {list(self.factors)}",
                    needed="rising boundaries, and one factor for each",
                )
            )

    def factor(self, step: int) -> float:
        reached = [f for b, f in zip(self.boundaries, self.factors, strict=True) if step >= b]
        return float(reached[-1]) if reached else 1.0

    def emit(self, op: Builder, step: Value, like: Value) -> Value:
        current = op.constant(1.0, like.dtype)
        for boundary, factor in zip(self.boundaries, self.factors, strict=True):
            current = op.Where(op.GreaterOrEqual(step, boundary), factor, current)
        return current
