"""Rectified Adam."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.graph.builder import Builder, Value
from onward.optimizers.adam import Betas
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import as_float, blend, one_minus_power


@dataclasses.dataclass(frozen=True)
class RAdam(Betas, FormulaOptimizer):
    """`torch.optim.RAdam`: Adam that takes plain momentum steps until the second moment is known well enough."""

    def slots(self) -> dict[str, Slot]:
        return {"m": Slot(), "v": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """X' = X - R·m̂·r·√(1 - β₂ᵗ)/(√v' + ε) if ρ > 5 else X - R·m̂, with ρ = ρ∞ - 2t·β₂ᵗ/(1 - β₂ᵗ)."""
        X, G = self.decayed(op, R, X, G)
        t = op.Add(as_float(op, T, X), 1.0)
        m = blend(op, self.beta1, state[0], G)
        v = blend(op, self.beta2, state[1], op.Mul(G, G))
        known = one_minus_power(op, self.beta2, t)
        corrected = op.Div(m, one_minus_power(op, self.beta1, t))
        limit = 2.0 / (1.0 - self.beta2) - 1.0
        rho = op.Sub(limit, op.Div(op.Mul(op.Mul(t, 2.0), op.Sub(1.0, known)), known))
        certain = op.Greater(rho, 5.0)
        safe = op.Max(rho, 5.0)  # below 5 the root is not defined, and its value is not used
        numerator = op.Mul(op.Mul(op.Sub(safe, 4.0), op.Sub(safe, 2.0)), limit)
        denominator = op.Mul(safe, (limit - 4.0) * (limit - 2.0))
        rectifier = op.Sqrt(op.Div(numerator, denominator))
        adaptive = op.Div(op.Sqrt(known), op.Add(op.Sqrt(v), self.epsilon))
        factor = op.Where(certain, op.Mul(rectifier, adaptive), 1.0)
        return [op.Sub(X, op.Mul(R, op.Mul(corrected, factor))), m, v]
