"""LAMB."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.graph.builder import Builder, Value
from onward.optimizers.adam import Betas
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import as_float, blend, one_minus_power


@dataclasses.dataclass(frozen=True)
class LAMB(Betas, FormulaOptimizer):
    """LAMB (You and others, 2020), as in the paper: Adam's direction, scaled per tensor to the size of the weights.

    With `decoupled` (the default) weight decay is part of the direction, as in the paper; without, it is L2.
    """

    epsilon: float = 1e-6
    _: dataclasses.KW_ONLY
    weight_decay: float = 0.01
    decoupled: bool = True

    def slots(self) -> dict[str, Slot]:
        return {"m": Slot(), "v": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """u = m̂/(√v̂ + ε) + λ·X; X' = X - R·(‖X‖/‖u‖)·u, with the ratio 1 where a norm is 0."""
        if self.weight_decay and not self.decoupled:
            G = op.Add(G, op.Mul(X, self.weight_decay))
        t = op.Add(as_float(op, T, X), 1.0)
        m = blend(op, self.beta1, state[0], G)
        v = blend(op, self.beta2, state[1], op.Mul(G, G))
        root = op.Sqrt(op.Div(v, one_minus_power(op, self.beta2, t)))
        direction = op.Div(op.Div(m, one_minus_power(op, self.beta1, t)), op.Add(root, self.epsilon))
        if self.weight_decay and self.decoupled:
            direction = op.Add(direction, op.Mul(X, self.weight_decay))
        weight_norm = op.Sqrt(op.ReduceSumSquare(X, keepdims=0))
        step_norm = op.Sqrt(op.ReduceSumSquare(direction, keepdims=0))
        usable = op.And(op.Greater(weight_norm, 0.0), op.Greater(step_norm, 0.0))
        ratio = op.Where(usable, op.Div(weight_norm, op.Where(usable, step_norm, 1.0)), 1.0)
        return [op.Sub(X, op.Mul(op.Mul(R, ratio), direction)), m, v]
