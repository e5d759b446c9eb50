"""Adagrad."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Group, Slot, Updated
from onward.optimizers.formulas import as_float
from onward.optimizers.operators import emit_decayed, is_exact
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Adagrad(FormulaOptimizer):
    """ONNX's `Adagrad` operator, which is `torch.optim.Adagrad` exactly (there, `decay_factor` is `lr_decay`).

    r = R / (1 + T·decay_factor);  H' = H + G²;  X' = X - r·G / (√H' + epsilon), with T = 0 at the first update. The
    operator's attributes are float32, so float64 parameters get a function instead.
    """

    FUNCTION: ClassVar[str] = "DoubleAdagrad"

    learning_rate: float | Schedule = 1e-2
    decay_factor: float = 0.0
    epsilon: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("decay_factor", "epsilon", "initial_accumulator"):
            check_number(name, getattr(self, name), type(self).__name__, low=0.0)

    def slots(self) -> dict[str, Slot]:
        return {"h": Slot(self.initial_accumulator)}

    def operator_epsilon(self) -> float:
        """Return the operator's epsilon."""
        return float(self.epsilon)

    def update(self, group: Group) -> list[Updated]:
        if not is_exact(group):
            return super().update(group)
        return emit_decayed(
            self,
            group,
            "Adagrad",
            group.step,
            decay_factor=float(self.decay_factor),
            epsilon=self.operator_epsilon(),
        )

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """r = R / (1 + T·decay_factor); H' = H + G²; X' = X - r·G / (√H' + epsilon)."""
        X, G = self.decayed(op, R, X, G)
        if self.decay_factor:
            R = op.Div(R, op.Add(op.Mul(as_float(op, T, X), float(self.decay_factor)), 1.0))
        H = op.Add(state[0], op.Mul(G, G))
        return [op.Sub(X, op.Div(op.Mul(R, G), op.Add(op.Sqrt(H), self.operator_epsilon()))), H]
