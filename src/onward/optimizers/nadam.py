"""Adam with Nesterov momentum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.adam import Betas
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import as_float, blend, one_minus_power
from onward.schedules.base import Schedule

_DECAY = 0.96


@dataclasses.dataclass(frozen=True)
class NAdam(Betas, FormulaOptimizer):
    """`torch.optim.NAdam`; with `momentum_decay=1`, Keras's Nadam (`KerasNadam`).

    μₜ = β₁·(1 - 0.96^(t·momentum_decay)/2);
    X' = X - R·(1 - μₜ)/(1 - Πμ)·G/d - R·μₜ₊₁/(1 - Πμ·μₜ₊₁)·m'/d with d = √(v'/(1 - β₂ᵗ)) + epsilon.
    """

    learning_rate: float | Schedule = 2e-3
    momentum_decay: float = 4e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("momentum_decay", self.momentum_decay, type(self).__name__, low=0.0)

    def slots(self) -> dict[str, Slot]:
        return {"m": Slot(), "v": Slot(), "mu_product": Slot(1.0, scalar=True)}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """Adam whose first moment looks one step ahead, with momentum μₜ that grows over time."""
        X, G = self.decayed(op, R, X, G)
        t = op.Add(as_float(op, T, X), 1.0)
        mu, following = self._mu(op, t), self._mu(op, op.Add(t, 1.0))
        product = op.Mul(state[2], mu)
        m = blend(op, self.beta1, state[0], G)
        v = blend(op, self.beta2, state[1], op.Mul(G, G))
        divisor = op.Add(op.Sqrt(op.Div(v, one_minus_power(op, self.beta2, t))), self.epsilon)
        now = op.Div(op.Sub(1.0, mu), op.Sub(1.0, product))
        ahead = op.Div(following, op.Sub(1.0, op.Mul(product, following)))
        direction = op.Add(op.Mul(now, G), op.Mul(ahead, m))
        return [op.Sub(X, op.Mul(R, op.Div(direction, divisor))), m, v, product]

    def _mu(self, op: Builder, t: Value) -> Value:
        power = op.Exp(op.Mul(t, self.momentum_decay * math.log(_DECAY)))
        return op.Mul(op.Sub(1.0, op.Mul(power, 0.5)), self.beta1)


@dataclasses.dataclass(frozen=True)
class KerasNadam(NAdam):
    """Keras's Nadam: `NAdam` with `momentum_decay=1` and Keras's epsilon of 1e-7."""

    learning_rate: float | Schedule = 1e-3
    epsilon: float = 1e-7
    momentum_decay: float = 1.0
    _: dataclasses.KW_ONLY
    decoupled: bool = True
