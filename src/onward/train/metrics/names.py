"""Metrics by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from onward.arguments import unknown_name
from onward.errors import A101, ArgumentError, Diagnostic
from onward.train.metrics.base import Metric
from onward.train.metrics.classes import AUC, F1, Accuracy, ConfusionMatrix, Perplexity, Precision, Recall, TopK
from onward.train.metrics.functions import function_metric, is_function_metric
from onward.train.metrics.numbers import MAE, R2, RMSE
from onward.train.metrics.sequences import CharacterErrorRate

METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "top5": TopK,
    "precision": Precision,
    "recall": Recall,
    "f1": F1,
    "auc": AUC,
    "mae": MAE,
    "rmse": RMSE,
    "r2": R2,
    "perplexity": Perplexity,
    "confusion": ConfusionMatrix,
    "cer": CharacterErrorRate,
}


def get_metric(name: Any) -> Metric:
    """Return a metric by name: one of `METRICS` or `topK`; `name:output` chooses the output of the model.

    >>> get_metric("top3").name, get_metric("accuracy:logits").output
    ('top3', 'logits')
    """
    if isinstance(name, Metric):
        return name
    if is_function_metric(name):
        return function_metric(name)
    if not isinstance(name, str):
        made = f"{name.__name__}()" if isinstance(name, type) and issubclass(name, Metric) else ""
        raise ArgumentError(
            Diagnostic(
                A101,
                f"{name!r} is not a metric",
                needed="a name, one of: "
                + ", ".join([*METRICS, "topK"])
                + "; a function of (output, target); or an object of a subclass of Metric",
                hint=f"this is the class; make one: {made}" if made else "",
            )
        )
    kind, _, output = name.partition(":")
    top = re.fullmatch(r"top-?(\d+)", kind)
    if top:
        metric: Metric = TopK(int(top[1]))
    elif kind in METRICS:
        metric = METRICS[kind]()
    else:
        raise unknown_name("metric", kind, [*METRICS, "topK"])
    metric.output = output or None
    return metric


def get_metrics(names: Any) -> list[Metric]:
    """Return the metrics; two with the same name are an error, since one would hide the other."""
    if not isinstance(names, Iterable):
        raise ArgumentError(Diagnostic(A101, f"metrics is {names!r}", needed="a list of names or Metric objects"))
    metrics: list[Metric] = []
    problems: list[Diagnostic] = []
    for name in names:
        try:
            metrics.append(get_metric(name))
        except ArgumentError as error:
            problems += error.diagnostics
    if problems:
        raise ArgumentError(problems)
    labels = [label(m) for m in metrics]
    if len(set(labels)) < len(labels):
        raise ArgumentError(Diagnostic(A101, "the same metric twice", found=", ".join(labels), needed="each name once"))
    return metrics


def label(metric: Metric) -> str:
    """Return the name of the column in the logs."""
    name = metric.name or type(metric).__name__.lower()
    return f"{name}:{metric.output}" if metric.output else name
