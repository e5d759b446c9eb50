"""Corrected classification losses."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from onward.backends.reference.ops.softmax import log_softmax


def negative_log_likelihood(
    log_prob: np.ndarray, target: np.ndarray, weight: np.ndarray | None, ignore_index: int | None, reduction: str
) -> np.ndarray:
    """Return the loss of the standard, for any rank."""
    valid = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    safe = np.where(valid, target, 0)
    picked = -np.take_along_axis(log_prob, np.expand_dims(safe, 1), axis=1).squeeze(1)
    weights = valid.astype(log_prob.dtype) * (1 if weight is None else weight[safe])
    loss = np.where(valid, picked * weights, 0)
    if reduction == "none":
        return loss.astype(log_prob.dtype)
    total = loss.sum()
    if reduction == "mean":
        with np.errstate(invalid="ignore"):  # every label ignored: NaN, as the standard's division gives
            total = total / weights.sum()
    return np.asarray(total, dtype=log_prob.dtype)


class SoftmaxCrossEntropyLoss(OpRun):
    """Upstream takes the logarithm of the softmax: -inf where it underflows."""

    def _run(
        self,
        scores: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> tuple[np.ndarray, ...]:
        log_prob = log_softmax(scores, 1)
        loss = negative_log_likelihood(log_prob, labels, weights, ignore_index, reduction)
        return (loss, log_prob) if len(self.onnx_node.output) > 1 else (loss,)


class NegativeLogLikelihoodLoss(OpRun):
    """Upstream gives float64 for a float32 weighted mean, and loops in Python over every element."""

    def _run(
        self,
        x: np.ndarray,
        target: np.ndarray,
        weight: np.ndarray | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> tuple[np.ndarray]:
        return (negative_log_likelihood(x, target, weight, ignore_index, reduction),)


OPERATORS: list[type[OpRun]] = [SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss]
