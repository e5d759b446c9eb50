"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onward.arguments import check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Group, Slot, Updated
from onward.optimizers.operators import emit_decayed, is_exact


@dataclasses.dataclass(frozen=True)
class SGD(FormulaOptimizer):
    """X - R·G, or with momentum ONNX's `Momentum` operator, which is `torch.optim.SGD` exactly.

    V' = momentum·V + (1 - dampening)·G, at the first update V' = G; then X - R·V', or with `nesterov`
    X - R·(G + momentum·V'). The operator's attributes are float32, so float64 parameters get a function instead.
    """

    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check_number("momentum", self.momentum, owner, low=0.0)
        check_number("dampening", self.dampening, owner, low=0.0)
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "`nesterov` needs momentum above 0 and no dampening",
                    place=f"optimizer `{owner}`",
                    found=f"momentum={self.momentum}, dampening={self.dampening}",
                )
            )

    def slots(self) -> dict[str, Slot]:
        return {"v": Slot()} if self.momentum else {}

    def update(self, group: Group) -> list[Updated]:
        if not self.momentum or not is_exact(group):
            return super().update(group)
        return emit_decayed(
            self,
            group,
            "Momentum",
            group.step,
            alpha=float(self.momentum),
            beta=1.0 - self.dampening,
            mode="nesterov" if self.nesterov else "standard",
        )

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """X' = X - R·G; with momentum V' = momentum·V + (1 - dampening)·G (first V' = G) in G's place."""
        X, G = self.decayed(op, R, X, G)
        if not state:
            return [op.Sub(X, op.Mul(R, G))]
        share = op.Mul(G, 1.0 - self.dampening) if self.dampening else G
        V = op.Where(op.Equal(T, 0), G, op.Add(op.Mul(state[0], float(self.momentum)), share))
        direction = op.Add(G, op.Mul(V, float(self.momentum))) if self.nesterov else V
        return [op.Sub(X, op.Mul(R, direction)), V]


@dataclasses.dataclass(frozen=True)
class Momentum(SGD):
    """`SGD` with a default momentum of 0.9: ONNX's `Momentum` operator."""

    FUNCTION: ClassVar[str] = "SGD"  # onnx 1.22's reference mistakes a function `Momentum` for the operator
    momentum: float = 0.9
