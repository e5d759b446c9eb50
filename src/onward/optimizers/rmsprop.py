"""RMSprop, in PyTorch's and in Keras's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.optimizers.formulas import blend
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class RMSprop(FormulaOptimizer):
    """`torch.optim.RMSprop`: v' = alpha·v + (1 - alpha)·G²;  X' = X - R·G / (√v' + epsilon).

    Args:
        momentum: b' = momentum·b + G / (√v' + epsilon); X' = X - R·b'.
        centered: divide by √(v' - mean(G)²) instead.
    """

    learning_rate: float | Schedule = 1e-2
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check_number("alpha", self.alpha, owner, low=0.0, high=1.0)
        check_number("epsilon", self.epsilon, owner, low=0.0)
        check_number("momentum", self.momentum, owner, low=0.0)

    def slots(self) -> dict[str, Slot]:
        return {
            "v": Slot(),
            **({"mean": Slot()} if self.centered else {}),
            **({"momentum": Slot()} if self.momentum else {}),
        }

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """v' = α·v + (1 - α)·G²; X' = X - R·G / (√v' + ε)."""
        X, G = self.decayed(op, R, X, G)
        named = dict(zip(self.slots(), state, strict=True))
        new = {"v": blend(op, self.alpha, named["v"], op.Mul(G, G))}
        square = new["v"]
        if self.centered:
            new["mean"] = blend(op, self.alpha, named["mean"], G)
            square = op.Sub(square, op.Mul(new["mean"], new["mean"]))
        direction = op.Div(G, self.divisor(op, square))
        if not self.momentum:
            return [op.Sub(X, op.Mul(R, direction)), *new.values()]
        new["momentum"] = op.Add(op.Mul(named["momentum"], self.momentum), self.pushed(op, R, direction))
        return [op.Sub(X, self.pulled(op, R, new["momentum"])), *new.values()]

    def divisor(self, op: Builder, square: Value) -> Value:
        return op.Add(op.Sqrt(square), self.epsilon)

    def pushed(self, op: Builder, R: Value, direction: Value) -> Value:
        return direction

    def pulled(self, op: Builder, R: Value, buffer: Value) -> Value:
        return op.Mul(R, buffer)


@dataclasses.dataclass(frozen=True)
class KerasRMSprop(RMSprop):
    """Keras's RMSprop: epsilon is inside the root, and the momentum buffer contains the rate."""

    learning_rate: float | Schedule = 1e-3
    alpha: float = 0.9
    epsilon: float = 1e-7
    _: dataclasses.KW_ONLY
    decoupled: bool = True

    def divisor(self, op: Builder, square: Value) -> Value:
        return op.Sqrt(op.Add(square, self.epsilon))

    def pushed(self, op: Builder, R: Value, direction: Value) -> Value:
        return op.Mul(R, direction)

    def pulled(self, op: Builder, R: Value, buffer: Value) -> Value:
        return buffer
