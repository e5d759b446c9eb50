"""The losses of the trade against libraries of others, where they are installed: monai and pytorch-metric-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onward import losses

RNG = np.random.default_rng(29)
MASKS, TRUTH = RNG.normal(size=(3, 4, 6, 5)) * 2, (RNG.random((3, 4, 6, 5)) > 0.6).astype(np.float64)
PIXELS = RNG.integers(0, 4, size=(3, 6, 5))
ONE_HOT = np.moveaxis(np.eye(4)[PIXELS], -1, 1).copy()
VECTORS, GROUPS = RNG.normal(size=(9, 5)), np.array([0, 1, 0, 2, 1, 2, 0, 1, 2])
CORNERS, OTHERS = (np.sort(RNG.random((9, 2, 2)), axis=1).reshape(9, 4) for _ in range(2))


def compare(run, run_gradient, loss, output, label, function, given=None) -> None:
    tensor = torch.from_numpy(output.copy()).requires_grad_()
    expected = function(tensor, torch.from_numpy((label if given is None else given).copy()))
    expected.backward()

    np.testing.assert_allclose(run(loss, [output], [label], on="onnxruntime"), expected.detach(), rtol=1e-6)
    np.testing.assert_allclose(
        run_gradient(loss, [output], [label], on="onnxruntime"), tensor.grad, rtol=1e-6, atol=1e-10
    )


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("squared", [False, True])
def test_dice_is_that_of_monai(run, run_gradient, batch: bool, squared: bool) -> None:
    theirs = pytest.importorskip("monai.losses").DiceLoss(
        sigmoid=True, batch=batch, squared_pred=squared, smooth_nr=0.7, smooth_dr=0.7
    )

    compare(
        run, run_gradient, losses.Dice(batch=batch, squared=squared, smooth=0.7), MASKS, TRUTH, theirs
    )  # fmt: skip


def test_dice_of_classes_is_that_of_monai(run, run_gradient) -> None:
    theirs = pytest.importorskip("monai.losses").DiceLoss(
        softmax=True, include_background=False, smooth_nr=1.0, smooth_dr=1.0
    )
    loss = losses.Dice(activation="softmax", targets="index", background=False)

    compare(run, run_gradient, loss, MASKS, PIXELS, theirs, given=ONE_HOT)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.3, 0.7)])
def test_tversky_is_that_of_monai(run, run_gradient, alpha: float, beta: float) -> None:
    theirs = pytest.importorskip("monai.losses").TverskyLoss(
        sigmoid=True, alpha=alpha, beta=beta, smooth_nr=0.3, smooth_dr=0.3
    )

    compare(run, run_gradient, losses.Tversky(alpha=alpha, beta=beta, smooth=0.3), MASKS, TRUTH, theirs)


@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.5])
def test_binary_focal_is_that_of_monai(run, run_gradient, gamma: float) -> None:
    theirs = pytest.importorskip("monai.losses").FocalLoss(gamma=gamma, alpha=0.25)

    compare(run, run_gradient, losses.BinaryFocal(gamma=gamma, alpha=0.25), MASKS, TRUTH, theirs)


def test_focal_is_that_of_monai(run, run_gradient) -> None:
    theirs = pytest.importorskip("monai.losses").FocalLoss(
        gamma=2.0, use_softmax=True, weight=[0.5, 1.0, 2.0, 1.5], reduction="none"
    )

    compare(
        run,
        run_gradient,
        losses.Focal(alpha=[0.5, 1.0, 2.0, 1.5]),
        MASKS,
        PIXELS,
        lambda x, t: theirs(x, t).sum(1).mean(),
        given=ONE_HOT,
    )


def test_giou_is_that_of_monai(run, run_gradient) -> None:
    giou = pytest.importorskip("monai.losses.giou_loss").BoxGIoULoss()
    value = giou(torch.from_numpy(CORNERS), torch.from_numpy(OTHERS))

    # monai computes in float32 and adds another epsilon
    np.testing.assert_allclose(run(losses.GIoU(), [CORNERS], [OTHERS]), value, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_is_that_of_pytorch_metric_learning(run, run_gradient, temperature: float) -> None:
    theirs = pytest.importorskip("pytorch_metric_learning.losses").NTXentLoss(temperature=temperature)

    compare(run, run_gradient, losses.NTXent(temperature=temperature), VECTORS, GROUPS, theirs)


def test_supervised_contrastive_is_that_of_pytorch_metric_learning(run) -> None:
    theirs = pytest.importorskip("pytorch_metric_learning.losses").SupConLoss(temperature=0.2)
    value = theirs(torch.from_numpy(VECTORS), torch.from_numpy(GROUPS))

    np.testing.assert_allclose(
        run(losses.SupervisedContrastive(temperature=0.2), [VECTORS], [GROUPS]), value, rtol=1e-6
    )


def test_batch_hard_triplets_are_those_of_pytorch_metric_learning(run, run_gradient) -> None:
    package = pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning import distances, losses as theirs, miners, reducers  # noqa: I001

    distance = distances.LpDistance(normalize_embeddings=False)
    miner = miners.BatchHardMiner(distance=distance)
    loss = theirs.TripletMarginLoss(margin=1.5, distance=distance, reducer=reducers.MeanReducer())
    assert package is not None

    compare(
        run,
        run_gradient,
        losses.BatchTriplet(margin=1.5),
        VECTORS,
        GROUPS,
        lambda x, y: loss(x, y, miner(x, y)),
    )
