"""Adamax, in PyTorch's and in Keras's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.graph.builder import Builder, Value
from onward.optimizers.adam import Betas
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import as_float, blend, one_minus_power
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Adamax(Betas, FormulaOptimizer):
    """`torch.optim.Adamax`: u' = max(β₂·u, |G| + epsilon);  X' = X - R/(1 - β₁ᵗ) · m'/u'."""

    learning_rate: float | Schedule = 2e-3

    def slots(self) -> dict[str, Slot]:
        return {"m": Slot(), "u": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """m' = β₁·m + (1 - β₁)·G; u' = max(β₂·u, |G| + ε); X' = X - R/(1 - β₁ᵗ) · m'/u'."""
        X, G = self.decayed(op, R, X, G)
        t = op.Add(as_float(op, T, X), 1.0)
        m = blend(op, self.beta1, state[0], G)
        u = op.Max(op.Mul(state[1], self.beta2), self.size(op, G))
        rate = op.Div(R, one_minus_power(op, self.beta1, t))
        return [op.Sub(X, op.Mul(rate, op.Div(m, self.divisor(op, u)))), m, u]

    def size(self, op: Builder, G: Value) -> Value:
        return op.Add(op.Abs(G), self.epsilon)

    def divisor(self, op: Builder, u: Value) -> Value:
        return u


@dataclasses.dataclass(frozen=True)
class KerasAdamax(Adamax):
    """Keras's Adamax: u' = max(β₂·u, |G|), and epsilon is added to the divisor."""

    learning_rate: float | Schedule = 1e-3
    epsilon: float = 1e-7
    _: dataclasses.KW_ONLY
    decoupled: bool = True

    def size(self, op: Builder, G: Value) -> Value:
        return op.Abs(G)

    def divisor(self, op: Builder, u: Value) -> Value:
        return op.Add(u, self.epsilon)
