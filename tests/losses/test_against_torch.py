"""Every loss and every option against `torch.nn.functional`, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onward import losses


def product(*choices: list[Any]) -> list[tuple[Any, ...]]:
    return list(itertools.product(*choices))


REDUCTIONS = ["mean", "sum", "none"]
RNG = np.random.default_rng(7)
LOGITS = RNG.normal(size=(6, 5)) * 3
IMAGES = RNG.normal(size=(2, 4, 3, 3)) * 2
LABELS = np.array([0, 4, 2, 2, 1, 3])
PIXELS = RNG.integers(0, 4, size=(2, 3, 3))
WEIGHTS = [0.2, 1.0, 2.5, 0.7, 1.3]


def assert_equal(found: np.ndarray, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-9)
    assert found.shape == tuple(expected.shape)


def torch_of(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.mark.parametrize(
    ("reduction", "weight", "ignore_index", "smoothing"),
    product(REDUCTIONS, [None, WEIGHTS], [None, 2], [0.0, 0.1]),
)
def test_cross_entropy_of_indices(run, reduction, weight, ignore_index, smoothing) -> None:
    loss = losses.CrossEntropy(weight=weight, ignore_index=ignore_index, label_smoothing=smoothing, reduction=reduction)

    found = run(loss, [LOGITS], [LABELS])

    expected = F.cross_entropy(
        torch_of(LOGITS),
        torch_of(LABELS),
        weight=None if weight is None else torch.tensor(weight, dtype=torch.float64),
        ignore_index=-100 if ignore_index is None else ignore_index,
        label_smoothing=smoothing,
        reduction=reduction,
    )
    assert_equal(found, expected)


@pytest.mark.parametrize(("reduction", "smoothing"), product(REDUCTIONS, [0.0, 0.2]))
def test_cross_entropy_of_pixels(run, reduction, smoothing) -> None:
    loss = losses.CrossEntropy(weight=WEIGHTS[:4], ignore_index=1, label_smoothing=smoothing, reduction=reduction)

    found = run(loss, [IMAGES], [PIXELS])

    expected = F.cross_entropy(
        torch_of(IMAGES),
        torch_of(PIXELS),
        weight=torch.tensor(WEIGHTS[:4], dtype=torch.float64),
        ignore_index=1,
        label_smoothing=smoothing,
        reduction=reduction,
    )
    assert_equal(found, expected)


@pytest.mark.parametrize(("reduction", "smoothing"), product(REDUCTIONS, [0.0, 0.2]))
def test_cross_entropy_with_classes_last(run, reduction, smoothing) -> None:
    loss = losses.CrossEntropy(axis=-1, label_smoothing=smoothing, reduction=reduction)

    found = run(loss, [np.moveaxis(IMAGES, 1, -1).copy()], [PIXELS])

    assert_equal(
        found, F.cross_entropy(torch_of(IMAGES), torch_of(PIXELS), reduction=reduction, label_smoothing=smoothing)
    )


@pytest.mark.parametrize(
    ("reduction", "weight", "smoothing", "axis"),
    product(REDUCTIONS, [None, WEIGHTS[:4]], [0.0, 0.3], [1, -1]),
)
def test_cross_entropy_of_probabilities(run, reduction, weight, smoothing, axis) -> None:
    target = np.exp(RNG.normal(size=IMAGES.shape))
    target /= target.sum(1, keepdims=True)
    loss = losses.CrossEntropy(
        weight=weight, label_smoothing=smoothing, axis=axis, targets="probability", reduction=reduction
    )
    moved = [IMAGES, target] if axis == 1 else [np.moveaxis(a, 1, -1).copy() for a in (IMAGES, target)]

    found = run(loss, moved[:1], moved[1:])

    expected = F.cross_entropy(
        torch_of(IMAGES),
        torch_of(target),
        weight=None if weight is None else torch.tensor(weight, dtype=torch.float64),
        label_smoothing=smoothing,
        reduction=reduction,
    )
    assert_equal(found, expected)


@pytest.mark.parametrize(("reduction", "weight", "ignore_index"), product(REDUCTIONS, [None, WEIGHTS], [None, 2]))
def test_nll(run, reduction, weight, ignore_index) -> None:
    logarithms = F.log_softmax(torch_of(LOGITS), 1).numpy()
    loss = losses.NLL(weight=weight, ignore_index=ignore_index, reduction=reduction)

    found = run(loss, [logarithms], [LABELS])

    expected = F.nll_loss(
        torch_of(logarithms),
        torch_of(LABELS),
        weight=None if weight is None else torch.tensor(weight, dtype=torch.float64),
        ignore_index=-100 if ignore_index is None else ignore_index,
        reduction=reduction,
    )
    assert_equal(found, expected)


OUTPUT, TARGET = RNG.normal(size=(4, 3)) * 2, RNG.normal(size=(4, 3))
PROBABILITY, BINARY = RNG.uniform(0.01, 0.99, size=(4, 3)), RNG.integers(0, 2, size=(4, 3)).astype(np.float64)
SIGNS = 2 * BINARY - 1
ELEMENTWISE = [
    (losses.MSE, {}, OUTPUT, TARGET, F.mse_loss, {}),
    (losses.L1, {}, OUTPUT, TARGET, F.l1_loss, {}),
    (losses.SmoothL1, {}, OUTPUT, TARGET, F.smooth_l1_loss, {}),
    (losses.SmoothL1, {"beta": 0.3}, OUTPUT, TARGET, F.smooth_l1_loss, {"beta": 0.3}),
    (losses.SmoothL1, {"beta": 0.0}, OUTPUT, TARGET, F.smooth_l1_loss, {"beta": 0.0}),
    (losses.Huber, {"delta": 0.7}, OUTPUT, TARGET, F.huber_loss, {"delta": 0.7}),
    (losses.BCE, {}, PROBABILITY, BINARY, F.binary_cross_entropy, {}),
    (losses.BCE, {}, BINARY, 1 - BINARY, F.binary_cross_entropy, {}),
    (losses.BCEWithLogits, {}, OUTPUT, BINARY, F.binary_cross_entropy_with_logits, {}),
    (
        losses.BCEWithLogits, {"pos_weight": [0.5, 2.0, 3.0]}, OUTPUT, PROBABILITY,
        F.binary_cross_entropy_with_logits, {"pos_weight": torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)},
    ),
    (losses.KLDiv, {}, np.log(PROBABILITY), PROBABILITY[::-1].copy(), F.kl_div, {}),
    (losses.KLDiv, {}, np.log(PROBABILITY), BINARY, F.kl_div, {}),
    (losses.KLDiv, {"log_target": True}, np.log(PROBABILITY), TARGET, F.kl_div, {"log_target": True}),
]  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("loss", "options", "output", "label", "function", "arguments"), ELEMENTWISE)
@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
def test_elementwise(run, reduction, loss, options, output, label, function, arguments) -> None:
    found = run(loss(**options, reduction=reduction), [output], [label])

    assert_equal(found, function(torch_of(output), torch_of(label), reduction=reduction, **arguments))


def test_kl_div_with_batchmean_divides_by_the_batch(run) -> None:
    found = run(losses.KLDiv(reduction="batchmean"), [np.log(PROBABILITY)], [PROBABILITY])

    assert_equal(found, F.kl_div(torch_of(np.log(PROBABILITY)), torch_of(PROBABILITY), reduction="batchmean"))


@pytest.mark.parametrize(("reduction", "margin"), product(REDUCTIONS, [0.0, 0.4]))
def test_cosine_embedding(run, reduction, margin) -> None:
    label = SIGNS[:, 0].copy()

    found = run(losses.CosineEmbedding(margin=margin, reduction=reduction), [OUTPUT, TARGET], [label])

    expected = F.cosine_embedding_loss(
        torch_of(OUTPUT), torch_of(TARGET), torch_of(label), margin=margin, reduction=reduction
    )
    assert_equal(found, expected)


@pytest.mark.parametrize(("reduction", "p", "swap"), product(REDUCTIONS, [1, 2, 3], [False, True]))
def test_triplet_margin(run, reduction, p, swap) -> None:
    triple = [OUTPUT, TARGET, PROBABILITY]

    found = run(losses.TripletMargin(margin=1.5, p=p, swap=swap, reduction=reduction), triple, [])

    expected = F.triplet_margin_loss(*(torch_of(a) for a in triple), margin=1.5, p=p, swap=swap, reduction=reduction)
    assert_equal(found, expected)


@pytest.mark.parametrize(("reduction", "squared"), product(REDUCTIONS, [False, True]))
def test_hinge(run, reduction, squared) -> None:
    found = run(losses.Hinge(squared=squared, reduction=reduction), [OUTPUT], [SIGNS])

    elements = np.maximum(0, 1 - SIGNS * OUTPUT) ** (2 if squared else 1)
    expected = {"mean": elements.mean(), "sum": elements.sum(), "none": elements}[reduction]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_bce_with_logits_is_finite_at_a_thousand(run) -> None:
    logits = np.array([1000.0, -1000.0, 1000.0, -1000.0], np.float32)
    labels = np.array([0.0, 1.0, 1.0, 0.0], np.float32)

    found = run(losses.BCEWithLogits(reduction="none"), [logits], [labels], on="onnxruntime")

    np.testing.assert_array_equal(found, [1000.0, 1000.0, 0.0, 0.0])


@pytest.mark.parametrize("name", ["mse", "l1", "huber", "smooth_l1", "bce_with_logits", "hinge"])
def test_onnxruntime_runs_an_elementwise_loss_in_float32(run, name: str) -> None:
    output, label = OUTPUT.astype(np.float32), SIGNS.astype(np.float32)

    found = run(losses.by_name(name), [output], [label], on="onnxruntime")

    np.testing.assert_allclose(found, run(losses.by_name(name), [output], [label]), rtol=1e-5)


def test_a_sum_of_losses_adds_them_with_their_weights(run) -> None:
    loss = losses.MSE() + 0.5 * losses.L1()

    found = run(loss, [OUTPUT], [TARGET])

    difference = OUTPUT - TARGET
    np.testing.assert_allclose(found, (difference**2).mean() + 0.5 * np.abs(difference).mean(), rtol=1e-12)
