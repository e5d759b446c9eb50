"""Metrics that are exact over batches of any size: `update` with each batch, `compute` at the end.

A metric keeps sums or counts (or, for the area under the curve, the scores), never a mean of means. All of them take
`(output, target)`:

- classes: output (N, K, …) with the classes on axis 1 as in ONNX, or on the last axis; target integer classes, or the
  same shape as the output holding one row per sample (one-hot). A negative class is left out.
- two classes: output and target of the same shape, (N,) or (N, 1); the output is a probability, or a logit when
  `from_logits` is set.
- regression: output and target of the same shape.
"""

from __future__ import annotations

from onward.train.metrics.base import Metric
from onward.train.metrics.classes import AUC, F1, Accuracy, ConfusionMatrix, Perplexity, Precision, Recall, TopK
from onward.train.metrics.names import METRICS, get_metric, get_metrics, label
from onward.train.metrics.numbers import MAE, R2, RMSE
from onward.train.metrics.sequences import CharacterErrorRate

__all__ = [
    "AUC",
    "F1",
    "MAE",
    "METRICS",
    "R2",
    "RMSE",
    "Accuracy",
    "CharacterErrorRate",
    "ConfusionMatrix",
    "Metric",
    "Perplexity",
    "Precision",
    "Recall",
    "TopK",
    "get_metric",
    "get_metrics",
    "label",
]
