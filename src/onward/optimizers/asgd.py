"""Averaged stochastic gradient descent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import as_float
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class ASGD(FormulaOptimizer):
    """`torch.optim.ASGD`: gradient descent with a falling rate, and the average of the weights after `start` updates.

    The average is state (`asgd/average/<name>`), as `ax` in PyTorch; the model keeps the last weights.
    """

    learning_rate: float | Schedule = 1e-2
    decay: float = 1e-4
    power: float = 0.75
    start: float = 1e6

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("decay", "power", "start"):
            check_number(name, getattr(self, name), type(self).__name__, low=0.0)

    def slots(self) -> dict[str, Slot]:
        return {"average": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """η = R/(1 + decay·R·T)^power; X' = X·(1 - decay·η) - η·G; average' = average + (X' - average)·μ."""
        X, G = self.decayed(op, R, X, G)
        t = as_float(op, T, X)
        rate = op.Div(R, op.Pow(op.Add(op.Mul(op.Mul(R, self.decay), t), 1.0), self.power))
        X = op.Sub(op.Mul(X, op.Sub(1.0, op.Mul(rate, self.decay))), op.Mul(rate, G))
        count = op.Sub(t, self.start)  # the number of averaged weights; below 1 the average equals the weights
        average = op.Add(state[0], op.Div(op.Sub(X, state[0]), op.Max(count, 1.0)))
        return [X, op.Where(op.Greater(count, 1.0), average, X)]
