"""Lion."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import blend
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Lion(FormulaOptimizer):
    """Lion (Chen and others, 2023), as in the paper, Keras and optax: the step is the sign of a blended momentum."""

    learning_rate: float | Schedule = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    _: dataclasses.KW_ONLY
    decoupled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            check_number(name, getattr(self, name), type(self).__name__, low=0.0, below=1.0)

    def slots(self) -> dict[str, Slot]:
        return {"m": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """X' = X - R·sign(β₁·m + (1 - β₁)·G); m' = β₂·m + (1 - β₂)·G."""
        X, G = self.decayed(op, R, X, G)
        direction = op.Sign(blend(op, self.beta1, state[0], G))
        return [op.Sub(X, op.Mul(R, direction)), blend(op, self.beta2, state[0], G)]
