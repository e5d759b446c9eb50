"""Resilient propagation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Slot
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Rprop(FormulaOptimizer):
    """`torch.optim.Rprop`: only the sign of the gradient is used, and each element has its own step size.

    The learning rate is the step size of the first update; later ones grow by `growth` while the sign stays and shrink
    by `shrink` when it changes, between `smallest` and `largest`. Intended for gradients of the whole data set.
    """

    learning_rate: float | Schedule = 1e-2
    shrink: float = 0.5
    growth: float = 1.2
    smallest: float = 1e-6
    largest: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check_number("shrink", self.shrink, owner, above=0.0, below=1.0)
        check_number("growth", self.growth, owner, above=1.0)
        check_number("smallest", self.smallest, owner, low=0.0)
        check_number("largest", self.largest, owner, low=self.smallest)

    def slots(self) -> dict[str, Slot]:
        return {"previous": Slot(), "size": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """s = sign(G·G₋); size' = clip(size·(growth, 1 or shrink), ...); X' = X - sign(G)·size', without G if s < 0."""
        X, G = self.decayed(op, R, X, G)
        previous, size = state
        size = op.Where(op.Equal(T, 0), R, size)
        product = op.Mul(G, previous)
        turned = op.Less(product, 0.0)
        assert X.dtype is not None
        growth = op.constant(np.asarray(self.growth, X.dtype.numpy()))
        factor = op.Where(turned, self.shrink, op.Where(op.Greater(product, 0.0), growth, 1.0))
        size = op.Clip(op.Mul(size, factor), self.smallest, self.largest)
        # After a sign change the gradient is set to 0: no step now, and no comparison at the next update.
        G = op.Where(turned, 0.0, G)
        return [op.Sub(X, op.Mul(op.Sign(G), size)), G, size]
