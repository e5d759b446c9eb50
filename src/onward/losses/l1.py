"""Mean absolute error."""

from __future__ import annotations

import dataclasses

from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss


@dataclasses.dataclass(frozen=True)
class L1(ElementwiseLoss):
    """|output - label|, as `torch.nn.functional.l1_loss`."""

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        return op.Abs(op.Sub(output, label))
