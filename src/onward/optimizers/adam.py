"""Adam and AdamW, in ONNX's form."""

from __future__ import annotations

import dataclasses

from onward.optimizers.base import Group, Optimizer, Slot, Updated
from onward.optimizers.operators import emit_decayed
from onward.schedules.base import check_number


@dataclasses.dataclass(frozen=True)
class Betas(Optimizer):
    """What the relatives of Adam share: how fast two averages forget, and what keeps a division finite."""

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
class Adam(Betas):
    """ONNX's `Adam` operator with T counted from 1, which is Keras's and scikit-learn's Adam exactly.

    V' = β₁·V + (1 - β₁)·G;  H' = β₂·H + (1 - β₂)·G²;  X' = X - R·√(1 - β₂ᵗ)/(1 - β₁ᵗ) · V' / (√H' + epsilon).

    PyTorch divides by √(H'/(1 - β₂ᵗ)) + epsilon instead: see `TorchAdam`.
    """

    def slots(self) -> dict[str, Slot]:
        return {"v": Slot(), "h": Slot()}

    def label(self) -> str:
        return "adam"

    def update(self, group: Group) -> list[Updated]:
        return emit_decayed(
            self,
            group,
            "Adam",
            group.op.Add(group.step, 1),
            alpha=float(self.beta1),
            beta=float(self.beta2),
            epsilon=float(self.epsilon),
        )


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """`Adam` with decoupled weight decay: X is first multiplied by 1 - R·weight_decay. Keras's AdamW exactly.

    PyTorch's AdamW has PyTorch's place for epsilon: see `TorchAdamW`.
    """

    _: dataclasses.KW_ONLY
    weight_decay: float = 0.01
    decoupled: bool = True
