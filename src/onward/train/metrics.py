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

import abc
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from onward.arguments import check_name, unknown_name, whole
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.losses.ctc import ctc_decode
from onward.train.data.source import to_array

T120 = "T120"


class Metric(abc.ABC):
    """A number over all samples seen since `reset`."""

    name = ""
    """Its column in the logs; without one, the name of the class in small letters."""
    larger_is_better: bool | None = True
    from_logits = False
    output: str | None = None
    """The output of the model that it reads; None means the one that the loss reads, or that derives from it."""
    target: str | None = None
    """The target that it compares with; None means the one that the loss compares this output with."""

    def __init__(self, *, from_logits: bool = False) -> None:
        """Set `from_logits`. A subclass with an `__init__` of its own need not call this one."""
        self.from_logits = from_logits
        self.reset()

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all samples."""

    @abc.abstractmethod
    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        """Add one batch."""

    @abc.abstractmethod
    def compute(self) -> float:
        """Return the value over all samples so far; NaN when there is none or it is not defined."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Return what `update` has collected, for a checkpoint."""
        return {k: np.asarray(v) for k, v in vars(self).items() if k.startswith("_") and not callable(v)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what `get_state` returned."""
        for key, value in state.items():
            setattr_known(self, key, value)


def setattr_known(metric: Metric, key: str, value: np.ndarray) -> None:
    """Set a field that the metric already has; a name from a file never makes a new one."""
    if key not in vars(metric) or not key.startswith("_"):
        raise ArgumentError(Diagnostic(A101, f"metric `{metric.name}` has no field `{key}`"))
    vars(metric)[key] = np.array(value)


def _mismatch(metric: str, output: np.ndarray, target: np.ndarray, needed: str) -> DataError:
    return DataError(
        Diagnostic(
            T120,
            f"metric `{metric}` cannot compare the output with the target",
            found=f"output {output.shape} {output.dtype}, target {target.shape} {target.dtype}",
            needed=needed,
        )
    )


def _arrays(metric: str, output: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    return to_array(output, f"the output for metric `{metric}`"), to_array(target, f"the target for metric `{metric}`")


def class_scores(metric: str, output: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (scores (M, K), classes (M,)); K is 1 when one number decides between two classes."""
    output, target = _arrays(metric, output, target)
    if output.shape == target.shape and output.ndim >= 2 and output.shape[1] > 1 and target.dtype.kind not in "iub":
        target = target.argmax(axis=1)
    if target.ndim == output.ndim == 2 and target.shape[1] == 1 < output.shape[1]:
        target = target[:, 0]  # a column of classes
    if output.ndim == target.ndim + 1 and output.shape[0:1] + output.shape[2:] == target.shape and output.ndim > 1:
        scores = np.moveaxis(output, 1, -1)
    elif output.ndim == target.ndim + 1 and output.shape[:-1] == target.shape:
        scores = output
    elif output.size == target.size and output.shape[:1] == target.shape[:1]:
        scores = output[..., None]
    else:
        raise _mismatch(metric, output, target, "output (N, K, …) and target (N, …), or both of the same shape")
    width = scores.shape[-1]
    scores = scores.reshape(-1, width).astype(np.float64)
    classes = target.reshape(-1)
    if classes.dtype.kind not in "iub":
        whole = np.rint(classes)
        if not np.array_equal(whole, classes):  # NaN included
            bad = classes[whole != classes][0]
            raise DataError(
                Diagnostic(
                    T120,
                    f"metric `{metric}` needs class numbers in the target",
                    found=f"{bad}",
                    needed="whole numbers",
                    hint="for a regression use mae, rmse or r2",
                )
            )
        classes = whole
    classes = classes.astype(np.int64)
    keep = classes >= 0
    return (scores, classes) if keep.all() else (scores[keep], classes[keep])


def _decide(metric: Metric, output: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (predicted classes, true classes, number of classes)."""
    scores, classes = class_scores(metric.name, output, target)
    if scores.shape[1] == 1 and np.asarray(output).dtype.kind in "iub":  # the output holds classes, not scores
        predicted = scores[:, 0].astype(np.int64)
        return predicted, classes, max(2, int(predicted.max(initial=-1)) + 1)
    if scores.shape[1] == 1:
        return (scores[:, 0] > (0.0 if metric.from_logits else 0.5)).astype(np.int64), classes, 2
    return scores.argmax(axis=1), classes, scores.shape[1]


def _one_score_per_class(metric: str, output: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (scores, classes) where every class has a score and every label is one of the classes."""
    scores, classes = class_scores(metric, output, target)
    if scores.shape[1] < 2:
        raise _mismatch(metric, np.asarray(output), np.asarray(target), "an output with one score per class")
    highest = int(classes.max(initial=-1))
    if highest >= scores.shape[1]:
        raise DataError(
            Diagnostic(
                T120,
                f"metric `{metric}`: the target holds class {highest}, and the output has {scores.shape[1]} classes",
                found=f"classes up to {highest}",
                needed=f"0 to {scores.shape[1] - 1}",
            )
        )
    return scores, classes


class _Mean(Metric):
    """The mean of one number per sample (or per element)."""

    def reset(self) -> None:
        self._sum, self._count = np.float64(0.0), np.int64(0)

    def _add(self, values: np.ndarray) -> None:
        self._sum += values.sum(dtype=np.float64)
        self._count += values.size

    def compute(self) -> float:
        return float(self._sum / self._count) if self._count else float("nan")


class Accuracy(_Mean):
    """The share of samples whose class is right.

    >>> metric = Accuracy()
    >>> metric.update(np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), np.array([1, 0, 0]))
    >>> round(metric.compute(), 4)
    0.6667
    """

    name = "accuracy"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        predicted, classes, _ = _decide(self, output, target)
        self._add(predicted == classes)


class TopK(_Mean):
    """The share of samples whose class is among the k highest scores; of equal scores the lower class goes first."""

    def __init__(self, k: int = 5, *, from_logits: bool = False) -> None:
        self.k = whole("k of top-k accuracy", k, 1)
        self.name = f"top{self.k}"
        super().__init__(from_logits=from_logits)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        scores, classes = _one_score_per_class(self.name, output, target)
        own = np.take_along_axis(scores, classes[:, None], axis=1)
        before = (scores == own) & (np.arange(scores.shape[1]) < classes[:, None])
        rank = (scores > own).sum(axis=1) + before.sum(axis=1)
        self._add(rank < self.k)


class ConfusionMatrix(Metric):
    """Counts with the true class as the row and the predicted class as the column; `compute` gives the accuracy."""

    name = "confusion"

    def reset(self) -> None:
        self._counts = np.zeros((0, 0), dtype=np.int64)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        predicted, classes, width = _decide(self, output, target)
        width = max(width, len(self._counts), int(classes.max(initial=-1)) + 1)
        if width > len(self._counts):
            grow = width - len(self._counts)
            self._counts = np.pad(self._counts, ((0, grow), (0, grow)))
        np.add.at(self._counts, (classes, predicted), 1)

    @property
    def matrix(self) -> np.ndarray:
        """The counts, (classes, classes)."""
        return self._counts.copy()

    def compute(self) -> float:
        total = self._counts.sum()
        return float(np.trace(self._counts) / total) if total else float("nan")


class _FromConfusion(ConfusionMatrix):
    """Precision, recall, F1: of class 1 for two classes, else averaged over the classes that occur."""

    def __init__(self, average: str = "macro", *, from_logits: bool = False) -> None:
        check_name("average", average, ("macro", "micro", "weighted"))
        self.average = average
        super().__init__(from_logits=from_logits)

    @abc.abstractmethod
    def _value(self, hit: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray: ...

    def compute(self) -> float:
        counts = self._counts.astype(np.float64)
        hit, predicted, true = np.diag(counts), counts.sum(axis=0), counts.sum(axis=1)
        if not counts.sum():
            return float("nan")
        if len(counts) == 2 and self.average == "macro":
            return float(self._value(hit, predicted, true)[1])
        if self.average == "micro":
            return float(self._value(hit.sum(), predicted.sum(), true.sum()))
        values = self._value(hit, predicted, true)
        if self.average == "weighted":
            return float((values * true).sum() / true.sum())
        return float(values[(predicted + true) > 0].mean())


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Return over / under, and 0 where under is 0, as scikit-learn does."""
    return np.asarray(np.divide(over, under, out=np.zeros_like(over, dtype=np.float64), where=np.asarray(under) > 0))


class Precision(_FromConfusion):
    """The share of the samples predicted as a class that belong to it."""

    name = "precision"

    def _value(self, hit: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return _ratio(hit, predicted)


class Recall(_FromConfusion):
    """The share of the samples of a class that were predicted as it."""

    name = "recall"

    def _value(self, hit: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return _ratio(hit, true)


class F1(_FromConfusion):
    """The harmonic mean of precision and recall."""

    name = "f1"

    def _value(self, hit: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return _ratio(2 * hit, predicted + true)


class AUC(Metric):
    """The area under the receiver operating curve, exact (ties count half). Over several classes it is the mean of
    each class against the rest. It keeps one number per sample and class.
    """

    name = "auc"

    def reset(self) -> None:
        self._scores, self._classes = np.zeros((0, 0)), np.zeros(0, dtype=np.int64)
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        scores, classes = class_scores(self.name, output, target)
        if self.from_logits and scores.shape[1] > 1:
            scores = np.exp(_log_softmax(scores))
        self._pending.append((scores, classes))

    def _gather(self) -> None:
        if self._pending:
            parts = [(self._scores, self._classes)] * bool(len(self._classes)) + self._pending
            self._scores = np.concatenate([s for s, _ in parts])
            self._classes = np.concatenate([c for _, c in parts])
            self._pending = []

    def get_state(self) -> dict[str, np.ndarray]:
        self._gather()
        return {"_scores": self._scores, "_classes": self._classes}

    def compute(self) -> float:
        self._gather()
        if not len(self._classes):
            return float("nan")
        if self._scores.shape[1] == 1:
            return _auc(self._scores[:, 0], self._classes == 1)
        if self._scores.shape[1] == 2:
            return _auc(self._scores[:, 1], self._classes == 1)
        return float(np.mean([_auc(self._scores[:, k], self._classes == k) for k in range(self._scores.shape[1])]))


def _auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the chance that a positive has a higher score than a negative: the rank sum of Mann and Whitney."""
    positives = int(positive.sum())
    negatives = positive.size - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


class Perplexity(_Mean):
    """exp of the mean negative log-likelihood of the true class."""

    name = "perplexity"
    larger_is_better = False

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        scores, classes = _one_score_per_class(self.name, output, target)
        if self.from_logits:
            log_p = _log_softmax(scores)
        else:
            log_p = np.log(np.maximum(scores, np.finfo(np.float64).tiny))
        self._add(-np.take_along_axis(log_p, classes[:, None], axis=1))

    def compute(self) -> float:
        return float(np.exp(np.minimum(super().compute(), 700.0)))


def _pair(metric: str, output: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return output and target as (rows, numbers) in float64."""
    output, target = _arrays(metric, output, target)
    if output.size != target.size or output.shape[:1] != target.shape[:1]:
        raise _mismatch(metric, output, target, "output and target of the same shape")
    rows = len(output) if output.ndim else 1
    width = output.size // rows if rows else 1
    return output.astype(np.float64).reshape(rows, width), target.astype(np.float64).reshape(rows, width)


class MAE(_Mean):
    """The mean absolute error over all numbers."""

    name = "mae"
    larger_is_better = False

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        a, b = _pair(self.name, output, target)
        self._add(np.abs(a - b))


class RMSE(_Mean):
    """The square root of the mean squared error over all numbers."""

    name = "rmse"
    larger_is_better = False

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        a, b = _pair(self.name, output, target)
        self._add(np.square(a - b))

    def compute(self) -> float:
        return float(np.sqrt(super().compute()))


class R2(Metric):
    """The share of the target's variance that is explained, per output number, averaged over them."""

    name = "r2"

    def reset(self) -> None:
        self._error, self._mean, self._spread = np.zeros(0), np.zeros(0), np.zeros(0)
        self._count = np.int64(0)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        a, b = _pair(self.name, output, target)
        n = len(b)
        if not n:
            return
        mean, spread, error = b.mean(axis=0), np.square(b - b.mean(axis=0)).sum(axis=0), np.square(a - b).sum(axis=0)
        if not self._count:
            self._error, self._mean, self._spread, self._count = error, mean, spread, np.int64(n)
            return
        total = self._count + n  # Chan's way of joining two variances
        delta = mean - self._mean
        self._spread = self._spread + spread + delta**2 * (self._count * n / total)
        self._mean = self._mean + delta * (n / total)
        self._error = self._error + error
        self._count = np.int64(total)

    def compute(self) -> float:
        if self._count < 2:
            return float("nan")
        flat = self._spread == 0
        value = 1.0 - self._error / np.where(flat, 1.0, self._spread)
        return float(np.where(flat, np.where(self._error == 0, 1.0, 0.0), value).mean())


class CharacterErrorRate(Metric):
    """The edits (insertions, deletions, replacements) that turn the decoded output into the label, for each label.

    For a model that `losses.CTC` trains: output (N, T, C) or (T, N, C), decoded greedily over all T steps; target
    (N, S), where the blank and negative numbers are padding.
    """

    name = "cer"
    larger_is_better = False

    def __init__(self, blank: int = 0, time_axis: int | None = None) -> None:
        self.blank = whole("blank of the character error rate", blank, 0)
        if time_axis not in (None, 0, 1):
            raise ArgumentError(
                Diagnostic(A101, f"time_axis is {time_axis!r}", needed="0, 1, or None to tell by shapes")
            )
        self.time_axis = time_axis
        super().__init__()

    def reset(self) -> None:
        self._edits, self._labels = np.int64(0), np.int64(0)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        output, target = _arrays(self.name, output, target)
        if output.ndim != 3 or target.ndim != 2 or target.dtype.kind not in "iu" or len(target) not in output.shape[:2]:
            raise _mismatch(self.name, output, target, "output (N, T, C) or (T, N, C), and integer labels (N, S)")
        if self.time_axis is None:
            if output.shape[0] == output.shape[1]:
                needed = "the axis of time: CharacterErrorRate(time_axis=1), as there are as many steps as samples"
                raise _mismatch(self.name, output, target, needed)
            self.time_axis = 1 if output.shape[0] == len(target) else 0
        for found, row in zip(ctc_decode(output, self.blank, self.time_axis), target, strict=True):
            wanted = row[(row >= 0) & (row != self.blank)].tolist()
            self._edits += _edit_distance(found, wanted)
            self._labels += len(wanted)

    def compute(self) -> float:
        return float(self._edits / self._labels) if self._labels else float("nan")


def _edit_distance(a: list[int], b: list[int]) -> int:
    """Return the number of insertions, deletions and replacements between two sequences (Levenshtein).

    >>> _edit_distance([1, 2, 3], [2, 3, 4])
    2
    """
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


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
    from onward.train.function_metrics import function_metric, is_function_metric

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
