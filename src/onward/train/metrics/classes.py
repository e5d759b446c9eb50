"""Metrics of classes."""

from __future__ import annotations

import abc

import numpy as np

from onward.arguments import check_name, whole
from onward.errors import DataError, Diagnostic
from onward.train.metrics.base import T120, Mean, Metric, arrays, mismatch


def class_scores(metric: str, output: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (scores (M, K), classes (M,)); K is 1 when one number decides between two classes."""
    output, target = arrays(metric, output, target)
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
        raise mismatch(metric, output, target, "output (N, K, …) and target (N, …), or both of the same shape")
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
        raise mismatch(metric, np.asarray(output), np.asarray(target), "an output with one score per class")
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


class Accuracy(Mean):
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


class TopK(Mean):
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


class Perplexity(Mean):
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
