"""Kullback-Leibler divergence."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_name
from onward.graph.builder import Builder, Value
from onward.losses.base import REDUCTIONS, ElementwiseLoss, Scale


@dataclasses.dataclass(frozen=True)
class KLDiv(ElementwiseLoss):
    """y·(log y - output), where the output holds log-probabilities: `torch.nn.functional.kl_div`.

    Args:
        log_target: the labels are logarithms too.
        reduction: also "batchmean", the sum divided by the size of the first axis, which is the divergence proper;
            "mean" divides by the number of all elements, as PyTorch does.
    """

    log_target: bool = False

    def __post_init__(self) -> None:
        check_name("reduction", self.reduction, (*REDUCTIONS, "batchmean"), place="loss `KLDiv`")

    def expects(self) -> Scale:
        return Scale.LOG_PROBABILITIES

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        if self.log_target:
            return op.Mul(op.Exp(label), op.Sub(label, output))
        positive = op.Greater(label, 0.0)
        logarithm = op.Log(op.Where(positive, label, 1.0))  # 0·log 0 = 0
        return op.Mul(label, op.Sub(logarithm, output))

    def reduce(self, op: Builder, elements: Value) -> Value:
        if self.reduction != "batchmean":
            return super().reduce(op, elements)
        batch = op.CastLike(op.Gather(op.Shape(elements), 0, axis=0), elements)
        return op.Div(op.ReduceSum(elements, keepdims=0), batch)
