"""Adagrad."""

from __future__ import annotations

import dataclasses

from onward.optimizers.base import Group, Optimizer, Slot, Updated
from onward.optimizers.operators import emit_decayed
from onward.schedules.base import Schedule, check_number


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """ONNX's `Adagrad` operator, which is `torch.optim.Adagrad` exactly (there, `decay_factor` is `lr_decay`).

    r = R / (1 + T·decay_factor);  H' = H + G²;  X' = X - r·G / (√H' + epsilon), with T = 0 at the first update.
    """

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
        return emit_decayed(
            self,
            group,
            "Adagrad",
            group.step,
            decay_factor=float(self.decay_factor),
            epsilon=self.operator_epsilon(),
        )
