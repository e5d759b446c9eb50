"""Adam and AdamW, in PyTorch's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.graph.builder import Builder, Value
from onward.optimizers.adam import Betas
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import as_float, blend, one_minus_power


@dataclasses.dataclass(frozen=True)
class TorchAdam(Betas, FormulaOptimizer):
    """`torch.optim.Adam`: epsilon is added after the bias correction of the second moment, unlike in ONNX's Adam."""

    amsgrad: bool = False

    def slots(self) -> dict[str, Slot]:
        return {"m": Slot(), "v": Slot(), **({"max_v": Slot()} if self.amsgrad else {})}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """m' = β₁·m + (1 - β₁)·G; v' = β₂·v + (1 - β₂)·G²; X' = X - R/(1 - β₁ᵗ) · m' / (√v'/√(1 - β₂ᵗ) + ε)."""
        X, G = self.decayed(op, R, X, G)
        t = op.Add(as_float(op, T, X), 1.0)
        m = blend(op, self.beta1, state[0], G)
        v = blend(op, self.beta2, state[1], op.Mul(G, G))
        largest = [op.Max(state[2], v)] if self.amsgrad else []
        size = op.Div(op.Sqrt(largest[0] if largest else v), op.Sqrt(one_minus_power(op, self.beta2, t)))
        rate = op.Div(R, one_minus_power(op, self.beta1, t))
        return [op.Sub(X, op.Mul(rate, op.Div(m, op.Add(size, self.epsilon)))), m, v, *largest]


@dataclasses.dataclass(frozen=True)
class TorchAdamW(TorchAdam):
    """`torch.optim.AdamW`: `TorchAdam` with X first multiplied by 1 - R·weight_decay."""

    _: dataclasses.KW_ONLY
    weight_decay: float = 0.01
    decoupled: bool = True
