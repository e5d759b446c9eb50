"""Triplets that are mined in the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onward.arguments import check_name, check_number
from onward.graph.builder import Builder, Value
from onward.losses.base import mean_of, smallest
from onward.losses.contrastive import GroupLoss, directions

MINING = ("hard", "semi_hard", "all")


@dataclasses.dataclass(frozen=True)
class BatchTriplet(GroupLoss):
    """max(0, d(a, p) - d(a, n) + margin) over triplets of the batch: p has the label of a, n another one.

    Reads one output of embeddings, [N, D], and int64 labels, [N]; d is the Euclidean distance.

    Args:
        margin: how much farther than a partner a negative has to be.
        mining: "hard" takes the farthest partner and the nearest negative of each a (Hermans et al. 2017), the mean
            over rows that have both. "semi_hard" takes for each pair (a, p) the nearest negative that is farther than
            p, or the farthest one if there is none (Schroff et al. 2015, as TensorFlow Addons), the mean over pairs.
            "all" takes every triplet, the mean over those whose loss is positive.
        normalize: compare directions: each embedding is divided by its length first.
        squared: d is the squared distance.
    """

    margin: float = 0.2
    mining: str = "hard"
    normalize: bool = False
    squared: bool = False

    def __post_init__(self) -> None:
        check_number("margin", self.margin, "BatchTriplet", low=0.0)
        check_name("way of mining", self.mining, MINING, place="loss `BatchTriplet`")

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        vectors = directions(op, outputs[0]) if self.normalize else outputs[0]
        distance = self._distances(op, vectors)
        partner, negative = self.pairs(op, vectors, labels[0])
        if self.mining == "hard":
            near = _pick(op, distance, partner, farthest=True)
            far = _pick(op, distance, negative, farthest=False)
            elements = op.Relu(op.Add(op.Sub(near, far), self.margin))
            return mean_of(op, elements, op.And(_any(op, partner, 1), _any(op, negative, 1)))
        pair, third = op.Unsqueeze(distance, [2]), op.Unsqueeze(distance, [1])  # d(a, p) and d(a, n): [a, p, n]
        if self.mining == "all":
            triplet = op.And(op.Unsqueeze(partner, [2]), op.Unsqueeze(negative, [1]))
            elements = op.Where(triplet, op.Relu(op.Add(op.Sub(pair, third), self.margin)), 0.0)
            return mean_of(op, elements, op.Greater(elements, 0.0))
        outside = op.And(op.Unsqueeze(negative, [1]), op.Greater(third, pair))
        beyond = _pick(op, op.Expand(third, op.Shape(outside)), outside, farthest=False)
        farthest = op.Unsqueeze(_pick(op, distance, negative, farthest=True), [1])
        far = op.Squeeze(op.Where(_any(op, outside, 2), beyond, farthest), [2])
        elements = op.Relu(op.Add(op.Sub(distance, far), self.margin))
        return mean_of(op, elements, op.And(partner, _any(op, negative, 1)))

    def _distances(self, op: Builder, vectors: Value) -> Value:
        """Return the distance of each pair of rows, from differences: exact for rows that are close to each other."""
        difference = op.Sub(op.Unsqueeze(vectors, [1]), op.Unsqueeze(vectors, [0]))
        square = op.ReduceSum(op.Mul(difference, difference), [2], keepdims=0)
        if self.squared:
            return square
        apart = op.Greater(square, smallest(vectors.dtype))  # equal rows have the distance 0 and the slope 0
        return op.Where(apart, op.Sqrt(op.Where(apart, square, 1.0)), 0.0)


def _pick(op: Builder, values: Value, among: Value, *, farthest: bool) -> Value:
    """Return the largest or smallest of the values that are allowed, along the last axis, which stays."""
    if farthest:
        index = op.ArgMax(op.Where(among, values, -1.0), axis=-1, keepdims=1)
    else:
        index = op.ArgMin(op.Where(among, values, op.Add(op.ReduceMax(values, keepdims=0), 1.0)), axis=-1, keepdims=1)
    return op.GatherElements(values, index, axis=-1)


def _any(op: Builder, condition: Value, axis: int) -> Value:
    """Return whether a condition holds anywhere along an axis, which stays."""
    return op.Greater(op.ReduceMax(op.Cast(condition, to=ir.DataType.INT32), [axis], keepdims=1), 0)
