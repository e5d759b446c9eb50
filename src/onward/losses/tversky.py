"""Tversky and focal Tversky."""

from __future__ import annotations

import dataclasses

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.losses.base import smallest
from onward.losses.dice import RegionLoss, ratio


@dataclasses.dataclass(frozen=True)
class Tversky(RegionLoss):
    """(1 - (TP + s) / (TP + α·FP + β·FN + s))^γ, with TP = Σ p·t, FP = Σ p·(1 - t), FN = Σ (1 - p)·t, s = `smooth`.

    Salehi et al. 2017; with γ other than 1, the focal Tversky loss (Abraham and Khan 2018 write γ as 1/γ). α = β = 0.5
    is Dice with twice the `smooth`, α = β = 1 the loss of the Jaccard index.

    Args:
        alpha: the weight of positions that are predicted and not labelled.
        beta: the weight of positions that are labelled and not predicted.
        gamma: γ; above 1 it counts regions that fit well less.
        RegionLoss: `activation`, `targets`, `smooth`, `batch`, `background`, `ignore_index` and `axis`.
    """

    alpha: float = 0.5
    beta: float = 0.5
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("alpha", self.alpha, "Tversky", low=0.0)
        check_number("beta", self.beta, "Tversky", low=0.0)
        check_number("gamma", self.gamma, "Tversky", above=0.0)

    def regions(self, op: Builder, p: Value, t: Value, axes: list[int]) -> Value:
        def total(value: Value) -> Value:
            return op.ReduceSum(value, axes, keepdims=0)

        hit = total(op.Mul(p, t))
        extra = op.Mul(op.Sub(total(p), hit), self.alpha)
        missed = op.Mul(op.Sub(total(t), hit), self.beta)
        loss = op.Sub(1.0, ratio(op, hit, op.Sum(hit, extra, missed), self.smooth))
        if self.gamma == 1:
            return loss
        # A sum's rounding error may push it below 0; the slope of a root is infinite at 0.
        loss = op.Max(loss, smallest(loss.dtype) if self.gamma < 1 else 0.0)
        return op.Pow(loss, op.constant(self.gamma, loss.dtype))
