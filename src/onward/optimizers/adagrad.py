"""Adagrad."""

from __future__ import annotations

import dataclasses

from onward.optimizers.base import Group, Optimizer, Slot, Updated, decay
from onward.optimizers.operators import emit_operator
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
        values = [p.value for p in group.parameters]
        if self.decoupled:
            values = [decay(group.op, self, group.rate, p.value, p.gradient)[0] for p in group.parameters]
        return emit_operator(
            group,
            "Adagrad",
            values,
            [p.gradient for p in group.parameters],
            group.rate,
            group.step,
            decay_factor=float(self.decay_factor),
            epsilon=self.operator_epsilon(),
            norm_coefficient=0.0 if self.decoupled else float(self.weight_decay),
        )
