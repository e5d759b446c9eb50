"""Adadelta."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import blend
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Adadelta(FormulaOptimizer):
    """`torch.optim.Adadelta`: the step is scaled by the size of earlier steps, so the rate has no unit."""

    learning_rate: float | Schedule = 1.0
    rho: float = 0.9
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rho", self.rho, type(self).__name__, low=0.0, high=1.0)
        check_number("epsilon", self.epsilon, type(self).__name__, low=0.0)

    def slots(self) -> dict[str, Slot]:
        return {"v": Slot(), "u": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """v' = ρ·v + (1 - ρ)·G²; D = G·√(u + ε)/√(v' + ε); u' = ρ·u + (1 - ρ)·D²; X' = X - R·D."""
        X, G = self.decayed(op, R, X, G)
        v = blend(op, self.rho, state[0], op.Mul(G, G))
        above, below = (op.Sqrt(op.Add(s, self.epsilon)) for s in (state[1], v))
        D = op.Mul(op.Div(above, below), G)
        return [op.Sub(X, op.Mul(R, D)), v, blend(op, self.rho, state[1], op.Mul(D, D))]
