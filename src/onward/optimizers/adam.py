"""Adam and AdamW, in ONNX's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Group, Optimizer, Slot, Updated
from onward.optimizers.formulas import as_float, blend, one_minus_power
from onward.optimizers.operators import emit_decayed, is_exact


@dataclasses.dataclass(frozen=True)
class Betas(Optimizer):
    """The settings that the variants of Adam share: the decay rates of two averages, and epsilon."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        check_number("beta1", self.beta1, name, low=0.0, below=1.0)
        check_number("beta2", self.beta2, name, low=0.0, below=1.0)
        check_number("epsilon", self.epsilon, name, low=0.0)


@dataclasses.dataclass(frozen=True)
class Adam(Betas, FormulaOptimizer):
    """ONNX's `Adam` operator with T counted from 1, which is Keras's and scikit-learn's Adam exactly.

    V' = β₁·V + (1 - β₁)·G;  H' = β₂·H + (1 - β₂)·G²;  X' = X - R·√(1 - β₂ᵗ)/(1 - β₁ᵗ) · V' / (√H' + epsilon).

    PyTorch divides by √(H'/(1 - β₂ᵗ)) + epsilon instead: see `TorchAdam`. The operator's attributes are float32, so
    float64 parameters get a function instead.
    """

    FUNCTION: ClassVar[str] = "DoubleAdam"

    def slots(self) -> dict[str, Slot]:
        return {"v": Slot(), "h": Slot()}

    def label(self) -> str:
        return "adam"

    def update(self, group: Group) -> list[Updated]:
        if not is_exact(group):
            return super().update(group)
        return emit_decayed(
            self,
            group,
            "Adam",
            group.op.Add(group.step, 1),
            alpha=float(self.beta1),
            beta=float(self.beta2),
            epsilon=float(self.epsilon),
        )

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """V' = β₁·V + (1 - β₁)·G; H' = β₂·H + (1 - β₂)·G²; X' = X - R·√(1 - β₂ᵗ)/(1 - β₁ᵗ) · V' / (√H' + ε)."""
        X, G = self.decayed(op, R, X, G)
        t = op.Add(as_float(op, T, X), 1.0)
        V = blend(op, self.beta1, state[0], G)
        H = blend(op, self.beta2, state[1], op.Mul(G, G))
        rate = op.Div(op.Mul(R, op.Sqrt(one_minus_power(op, self.beta2, t))), one_minus_power(op, self.beta1, t))
        return [op.Sub(X, op.Div(op.Mul(rate, V), op.Add(op.Sqrt(H), self.epsilon))), V, H]


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """`Adam` with decoupled weight decay: X is first multiplied by 1 - R·weight_decay. Keras's AdamW exactly.

    PyTorch's AdamW adds epsilon elsewhere: see `TorchAdamW`.
    """

    _: dataclasses.KW_ONLY
    weight_decay: float = 0.01
    decoupled: bool = True
