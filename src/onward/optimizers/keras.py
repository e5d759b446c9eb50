"""Keras's SGD and Adagrad, with ONNX's operators; Keras's Adam and AdamW are `Adam` and `AdamW`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.base import Group, Slot, Updated, decay
from onward.optimizers.operators import emit_operator, is_exact
from onward.optimizers.sgd import SGD
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class KerasSGD(SGD):
    """Keras's SGD: the velocity contains the rate, which matters as soon as the rate changes.

    V' = momentum·V + R·G;  X' = X - V', or with `nesterov` X - (momentum·V' + R·G). ONNX's `Momentum` operator with a
    rate of 1, fed R·G. Keras's own velocity is -V.
    """

    learning_rate: float | Schedule = 1e-2
    _: dataclasses.KW_ONLY
    decoupled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dampening:
            raise ArgumentError(
                Diagnostic(A101, "Keras's SGD has no dampening", place="optimizer `KerasSGD`", needed="dampening=0")
            )

    def update(self, group: Group) -> list[Updated]:
        if not self.momentum or not is_exact(group):
            return super().update(group)
        op = group.op
        decayed = [decay(op, self, group.rate, p.value, p.gradient) for p in group.parameters]
        return emit_operator(
            group,
            "Momentum",
            [value for value, _ in decayed],
            [op.Mul(group.rate, gradient) for _, gradient in decayed],
            op.constant(1.0, group.rate.dtype),
            group.step,
            alpha=float(self.momentum),
            beta=1.0,
            norm_coefficient=0.0,
            mode="nesterov" if self.nesterov else "standard",
        )

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """X' = X - R·G; with momentum V' = momentum·V + R·G in R·G's place, or with `nesterov` momentum·V' + R·G."""
        X, G = self.decayed(op, R, X, G)
        step = op.Mul(R, G)
        if not state:
            return [op.Sub(X, step)]
        V = op.Add(op.Mul(state[0], float(self.momentum)), step)
        return [op.Sub(X, op.Add(op.Mul(V, float(self.momentum)), step) if self.nesterov else V), V]


@dataclasses.dataclass(frozen=True)
class KerasAdagrad(Adagrad):
    """Keras's (and optax's) Adagrad: X' = X - R·G / √(H' + epsilon).

    ONNX's `Adagrad` operator with an epsilon of 0, and its accumulator starts at `initial_accumulator + epsilon`: the
    accumulator in the file is Keras's plus epsilon.
    """

    learning_rate: float | Schedule = 1e-3
    epsilon: float = 1e-7
    initial_accumulator: float = 0.1
    _: dataclasses.KW_ONLY
    decoupled: bool = True

    def slots(self) -> dict[str, Slot]:
        return {"h": Slot(self.initial_accumulator + self.epsilon)}

    def operator_epsilon(self) -> float:
        return 0.0
