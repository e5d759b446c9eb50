"""Mean squared error."""

from __future__ import annotations

import dataclasses

from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss


@dataclasses.dataclass(frozen=True)
class MSE(ElementwiseLoss):
    """(output - label)², as `torch.nn.functional.mse_loss`."""

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        difference = op.Sub(output, label)
        return op.Mul(difference, difference)
