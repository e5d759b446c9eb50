"""The gradient of each loss, as Onward differentiates it, against PyTorch's autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onward import losses

RNG = np.random.default_rng(13)
OUTPUT, TARGET = RNG.normal(size=(5, 4)) * 2, RNG.normal(size=(5, 4))
PROBABILITY = RNG.uniform(0.05, 0.95, size=(5, 4))
BINARY = (OUTPUT > TARGET).astype(np.float64)
SIGNS = 2 * BINARY - 1
INDEX = np.array([0, 3, 2, 1, 1])
SHARE = PROBABILITY / PROBABILITY.sum(1, keepdims=True)
WEIGHT = [0.5, 1.0, 2.0, 1.5]
W = torch.tensor(WEIGHT, dtype=torch.float64)

CASES = {
    "cross_entropy": (losses.CrossEntropy(), [OUTPUT], [INDEX], F.cross_entropy),
    "cross_entropy with all": (
        losses.CrossEntropy(weight=WEIGHT, ignore_index=1, label_smoothing=0.1), [OUTPUT], [INDEX],
        lambda y, t: F.cross_entropy(y, t, weight=W, ignore_index=1, label_smoothing=0.1),
    ),
    "cross_entropy of probabilities": (
        losses.CrossEntropy(targets="probability", label_smoothing=0.1), [OUTPUT], [SHARE],
        lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1),
    ),
    "nll": (losses.NLL(weight=WEIGHT), [np.log(SHARE)], [INDEX], lambda y, t: F.nll_loss(y, t, weight=W)),
    "mse": (losses.MSE(), [OUTPUT], [TARGET], F.mse_loss),
    "l1": (losses.L1(), [OUTPUT], [TARGET], F.l1_loss),
    "smooth_l1": (losses.SmoothL1(beta=0.7), [OUTPUT], [TARGET], lambda y, t: F.smooth_l1_loss(y, t, beta=0.7)),
    "huber": (losses.Huber(delta=0.7), [OUTPUT], [TARGET], lambda y, t: F.huber_loss(y, t, delta=0.7)),
    "bce": (losses.BCE(), [PROBABILITY], [BINARY], F.binary_cross_entropy),
    "bce_with_logits": (
        losses.BCEWithLogits(pos_weight=WEIGHT), [OUTPUT], [BINARY],
        lambda y, t: F.binary_cross_entropy_with_logits(y, t, pos_weight=W),
    ),
    "bce_with_logits far out": (
        losses.BCEWithLogits(), [500 * OUTPUT], [BINARY], F.binary_cross_entropy_with_logits,
    ),
    "bce_with_logits at zero": (
        losses.BCEWithLogits(), [0 * OUTPUT], [BINARY], F.binary_cross_entropy_with_logits,
    ),
    "kl_div": (
        losses.KLDiv(reduction="batchmean"), [np.log(SHARE)], [SHARE[::-1].copy()],
        lambda y, t: F.kl_div(y, t, reduction="batchmean"),
    ),
    "hinge": (losses.Hinge(), [OUTPUT], [SIGNS], lambda y, t: torch.relu(1 - y * t).mean()),
    "squared hinge": (losses.Hinge(squared=True), [OUTPUT], [SIGNS], lambda y, t: (torch.relu(1 - y * t) ** 2).mean()),
    "cosine_embedding": (
        losses.CosineEmbedding(margin=0.2), [OUTPUT, TARGET], [SIGNS[:, 0].copy()],
        lambda a, b, t: F.cosine_embedding_loss(a, b, t, margin=0.2),
    ),
    "triplet_margin": (
        losses.TripletMargin(margin=2.0), [OUTPUT, TARGET, PROBABILITY], [],
        lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=2.0),
    ),
    "triplet_margin with p=1 and swap": (
        losses.TripletMargin(margin=4.0, p=1, swap=True), [OUTPUT, TARGET, PROBABILITY], [],
        lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=4.0, p=1, swap=True),
    ),
    "a sum": (
        losses.MSE() + 0.3 * losses.L1(), [OUTPUT], [TARGET], lambda y, t: F.mse_loss(y, t) + 0.3 * F.l1_loss(y, t),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_equals_autograd(run_gradient, name: str) -> None:
    loss, outputs, labels, function = CASES[name]

    found = run_gradient(loss, outputs, labels)

    tensors = [torch.from_numpy(a.copy()) for a in outputs]
    tensors[0].requires_grad_()
    function(*tensors, *(torch.from_numpy(a.copy()) for a in labels)).backward()
    np.testing.assert_allclose(found, tensors[0].grad.numpy(), rtol=1e-6, atol=1e-12)


def test_the_gradient_of_bce_is_finite_at_zero_and_one(run_gradient) -> None:
    found = run_gradient(losses.BCE(), [np.array([0.0, 1.0, 0.0, 1.0])], [np.array([0.0, 1.0, 1.0, 0.0])])

    assert np.isfinite(found).all()
