"""Metrics against scikit-learn, over batches of uneven sizes."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk

from onward.errors import ArgumentError, DataError
from onward.train.metrics import (
    AUC,
    F1,
    MAE,
    METRICS,
    R2,
    RMSE,
    Accuracy,
    ConfusionMatrix,
    Perplexity,
    Precision,
    Recall,
    TopK,
    get_metric,
)

RNG = np.random.default_rng(3)
CLASSES = RNG.integers(0, 5, 103)
LOGITS = RNG.normal(size=(103, 5)).round(1) + 1.5 * np.eye(5)[CLASSES]
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
BINARY = RNG.integers(0, 2, 103)
SCORES = np.clip(RNG.normal(0.5, 0.3, 103) + 0.2 * BINARY, 0, 1).round(2)
TRUE = RNG.normal(5, 2, (103, 2))
GUESS = TRUE + RNG.normal(0, 0.7, (103, 2))
FRAMES = RNG.normal(size=(103, 7, 5))  # seven steps of time for each text of three labels
TEXTS = RNG.integers(1, 5, (103, 3))


def example(name):
    """An output and a target that the metric of this name takes."""
    if name == "cer":
        return FRAMES, TEXTS
    return (GUESS, TRUE) if name in ("mae", "rmse", "r2") else (PROBABILITIES, CLASSES)


def over_batches(metric, output, target, sizes=(1, 50, 7, 45)):
    assert sum(sizes) == len(target)
    first = 0
    for size in sizes:
        metric.update(output[first : first + size], target[first : first + size])
        first += size
    return metric.compute()


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (Accuracy(), sk.accuracy_score(CLASSES, LOGITS.argmax(1))),
        (Precision(), sk.precision_score(CLASSES, LOGITS.argmax(1), average="macro", zero_division=0)),
        (Recall(), sk.recall_score(CLASSES, LOGITS.argmax(1), average="macro", zero_division=0)),
        (F1(), sk.f1_score(CLASSES, LOGITS.argmax(1), average="macro", zero_division=0)),
        (F1("micro"), sk.f1_score(CLASSES, LOGITS.argmax(1), average="micro")),
        (F1("weighted"), sk.f1_score(CLASSES, LOGITS.argmax(1), average="weighted")),
        (TopK(2), sk.top_k_accuracy_score(CLASSES, LOGITS + np.arange(5)[::-1] * 1e-9, k=2)),
        (AUC(from_logits=True), sk.roc_auc_score(CLASSES, PROBABILITIES, multi_class="ovr")),
        (Perplexity(from_logits=True), np.exp(sk.log_loss(CLASSES, PROBABILITIES))),
    ],
    ids=lambda m: getattr(m, "name", ""),
)
def test_several_classes_agree_with_sklearn(metric, expected):
    assert over_batches(metric, LOGITS, CLASSES) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (Accuracy(), sk.accuracy_score(BINARY, SCORES > 0.5)),
        (Precision(), sk.precision_score(BINARY, SCORES > 0.5)),
        (Recall(), sk.recall_score(BINARY, SCORES > 0.5)),
        (F1(), sk.f1_score(BINARY, SCORES > 0.5)),
        (AUC(), sk.roc_auc_score(BINARY, SCORES)),
    ],
    ids=lambda m: getattr(m, "name", ""),
)
def test_two_classes_agree_with_sklearn(metric, expected):
    assert over_batches(metric, SCORES[:, None], BINARY[:, None]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (MAE(), sk.mean_absolute_error(TRUE, GUESS)),
        (RMSE(), np.sqrt(sk.mean_squared_error(TRUE, GUESS))),
        (R2(), sk.r2_score(TRUE, GUESS)),
    ],
    ids=lambda m: getattr(m, "name", ""),
)
def test_regression_agrees_with_sklearn(metric, expected):
    assert over_batches(metric, GUESS, TRUE) == pytest.approx(expected, rel=1e-10)


def test_confusion_matrix_agrees_with_sklearn():
    metric = ConfusionMatrix()
    over_batches(metric, LOGITS, CLASSES)

    np.testing.assert_array_equal(metric.matrix, sk.confusion_matrix(CLASSES, LOGITS.argmax(1)))


def test_logits_of_two_classes_are_cut_at_zero():
    metric = Accuracy(from_logits=True)

    metric.update(np.array([0.3, -0.3, 0.4]), np.array([1, 0, 0]))

    assert metric.compute() == pytest.approx(2 / 3)


def test_one_hot_targets_count_like_classes():
    plain, rows = Accuracy(), Accuracy()

    plain.update(LOGITS, CLASSES)
    rows.update(LOGITS, np.eye(5, dtype=np.float32)[CLASSES])

    assert plain.compute() == rows.compute()


def test_classes_on_axis_one_and_negative_ones_left_out():
    output = np.zeros((1, 3, 4))
    output[0, [0, 1, 2, 2], range(4)] = 1.0
    metric = Accuracy()

    metric.update(output, np.array([[0, 1, -100, 0]]))

    assert metric.compute() == pytest.approx(2 / 3)


def test_classes_on_the_last_axis():
    output = np.zeros((1, 4, 3))
    output[0, range(4), [0, 1, 2, 2]] = 1.0
    metric = Accuracy()

    metric.update(output, np.array([[0, 1, 2, 0]]))

    assert metric.compute() == pytest.approx(3 / 4)


@pytest.mark.parametrize("name", METRICS)
def test_state_of_a_metric_continues_it(name):
    output, target = example(name)
    whole, first, second = get_metric(name), get_metric(name), get_metric(name)
    whole.update(output[:60], target[:60])
    whole.update(output[60:], target[60:])
    first.update(output[:60], target[:60])

    second.set_state(first.get_state())
    second.update(output[60:], target[60:])

    assert second.compute() == whole.compute()


@pytest.mark.parametrize("name", METRICS)
def test_reset_forgets_everything(name):
    output, target = example(name)
    metric = get_metric(name)
    metric.update(output, target)

    metric.reset()

    assert np.isnan(metric.compute())


def test_shapes_that_do_not_belong_together_are_shown():
    with pytest.raises(DataError, match=r"output \(4, 3\) float64, target \(5,\) float64"):
        Accuracy().update(np.zeros((4, 3)), np.zeros(5))


def test_an_unknown_metric_lists_the_known_ones():
    with pytest.raises(ArgumentError, match="did you mean `accuracy`"):
        get_metric("acuracy")
