"""Weights of classes and samples against the formula and PyTorch; balanced sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import onward
from onward import losses
from onward.author.sample_weights import add_sample_weight
from onward.errors import ArgumentError, DataError
from onward.train.data.sampling import balanced_order
from train.tables import classifier, network

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("f")
LABELS = np.array([0] * 40 + [1] * 15 + [2] * 5)
VALUES = RNG.normal(size=(60, 3)).astype("f")
WEIGHTS = RNG.uniform(0, 3, size=60)
CLASS = torch.tensor([1.0, 2.0, 3.0])


def mean(elements, weights):
    return (elements * weights.reshape(-1, *[1] * (elements.ndim - 1))).mean()


def each(y, **settings):
    return F.cross_entropy(y, torch.tensor(LABELS), reduction="none", **settings)


CASES = {
    "cross entropy": (losses.CrossEntropy(), LABELS, lambda y, w: mean(each(y), w)),
    "smoothed": (losses.CrossEntropy(label_smoothing=0.1), LABELS, lambda y, w: mean(each(y, label_smoothing=0.1), w)),
    "class weights of the file": (
        losses.CrossEntropy(weight=[1.0, 2.0, 3.0]),
        LABELS,
        lambda y, w: (each(y, weight=CLASS) * w).sum() / CLASS[torch.tensor(LABELS)].sum(),
    ),
    "ignored labels": (
        losses.CrossEntropy(ignore_index=2),
        LABELS,
        lambda y, w: (each(y, ignore_index=2) * w).sum() / (LABELS != 2).sum(),
    ),
    "mse": (losses.MSE(), VALUES, lambda y, w: mean((y - torch.tensor(VALUES)) ** 2, w)),
    "a sum of losses": (
        losses.MSE(reduction="sum") + 0.5 * losses.L1(),
        VALUES,
        lambda y, w: (
            60 * 3 * mean((y - torch.tensor(VALUES)) ** 2, w) + 0.5 * mean((y - torch.tensor(VALUES)).abs(), w)
        ),
    ),
    "bce with logits": (
        losses.BCEWithLogits(),
        (VALUES > 0).astype("f"),
        lambda y, w: mean(
            F.binary_cross_entropy_with_logits(y, torch.tensor((VALUES > 0).astype("f")), reduction="none"), w
        ),
    ),
}


def by_torch(loss, weights, rate=0.1):
    """Return (loss, parameters after one step of SGD) of the same network in PyTorch."""
    model = onward.load(network(4, 3))
    p = {n: torch.tensor(v.const_value.numpy(), requires_grad=True) for n, v in model.initializers().items()}
    y = torch.relu(torch.tensor(X) @ p["W1"] + p["b1"]) @ p["W2"] + p["b2"]
    value = loss(y, torch.tensor(weights.astype("f")))
    value.backward()
    return value.item(), {n: (v - rate * v.grad).detach().numpy() for n, v in p.items()}


@pytest.mark.parametrize("batch", ["N", None, 60])
@pytest.mark.parametrize("case", CASES)
def test_a_weighted_step_is_that_of_pytorch(case, batch):
    loss, labels, formula = CASES[case]
    model = onward.make_trainable(network(4, 3, batch=batch), loss=loss, optimizer=onward.SGD(0.1))
    trainer = onward.Trainer(model)
    expected, parameters = by_torch(formula, WEIGHTS)

    history = trainer.fit(X, labels, batch_size=60, sample_weight=WEIGHTS, progress=False)

    np.testing.assert_allclose(history.epochs[0]["loss"], expected, rtol=1e-5)
    for name, array in parameters.items():
        np.testing.assert_allclose(trainer.parameters[name], array, rtol=1e-4, atol=1e-6)


def test_balanced_class_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    formula = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    expected, _ = by_torch(CASES["cross entropy"][2], formula[LABELS])

    for given in ("balanced", dict(enumerate(formula.tolist()))):
        history = onward.Trainer(classifier()).fit(X, LABELS, batch_size=60, class_weight=given, progress=False)
        np.testing.assert_allclose(history.epochs[0]["loss"], expected, rtol=1e-5)


def test_class_and_sample_weights_multiply():
    expected, _ = by_torch(CASES["cross entropy"][2], WEIGHTS * np.array([1.0, 4.0, 1.0])[LABELS])

    history = onward.Trainer(classifier()).fit(
        X, LABELS, batch_size=60, class_weight={1: 4.0}, sample_weight=WEIGHTS, progress=False
    )

    np.testing.assert_allclose(history.epochs[0]["loss"], expected, rtol=1e-5)


def test_a_validation_and_evaluate_give_the_loss_without_weights():
    trainer = onward.Trainer(classifier())

    history = trainer.fit(X, LABELS, validation_data=(X, LABELS), class_weight={0: 0.0}, progress=False)

    assert history.epochs[0]["val_loss"] == pytest.approx(trainer.evaluate(X, LABELS)["loss"], rel=1e-6)
    assert trainer.input_names == ("x", "labels")
    trainer.step({"x": X, "labels": LABELS})  # as before: no weight to feed


def test_weights_may_come_in_the_batches_of_an_iterable():
    expected, _ = by_torch(CASES["cross entropy"][2], WEIGHTS)
    batches = [{"x": X, "labels": LABELS, "w": WEIGHTS}]

    history = onward.Trainer(classifier()).fit(batches, sample_weight="w", progress=False)

    np.testing.assert_allclose(history.epochs[0]["loss"], expected, rtol=1e-5)


def test_weights_of_a_share_that_is_held_back_are_left_out():
    table = {"x": X, "labels": LABELS, "w": WEIGHTS}
    from_column = onward.Trainer(classifier())
    from_array = onward.Trainer(classifier())

    from_column.fit(table, sample_weight="w", validation_data=0.25, progress=False)
    from_array.fit(X, LABELS, sample_weight=WEIGHTS, validation_data=0.25, progress=False)

    np.testing.assert_array_equal(from_column.parameters["W1"], from_array.parameters["W1"])


RUNS = [{"class_weight": "balanced"}, {"sampler": "balanced"}, {"sample_weight": WEIGHTS}, {"class_weight": {1: 3}}]


@pytest.mark.parametrize("settings", RUNS)
def test_a_weighted_run_resumes_bit_for_bit(tmp_path, settings):
    whole = onward.Trainer(classifier())
    whole.fit(X, LABELS, epochs=4, batch_size=16, progress=False, **settings)
    onward.Trainer(classifier()).fit(
        X, LABELS, epochs=2, batch_size=16, checkpoint=tmp_path / "run", progress=False, **settings
    )
    resumed = onward.Trainer.resume(tmp_path / "run")
    again = {"sample_weight": WEIGHTS} if "sample_weight" in settings else {}  # the rest is in the checkpoint

    resumed.fit(X, LABELS, epochs=4, progress=False, **again)

    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(resumed.parameters[name], array)


def test_a_resumed_run_needs_the_same_weights(tmp_path):
    onward.Trainer(classifier()).fit(X, LABELS, sample_weight=WEIGHTS, checkpoint=tmp_path / "run", progress=False)
    resumed = onward.Trainer.resume(tmp_path / "run")

    with pytest.raises(ArgumentError, match="started with an array of sample weights"):
        resumed.fit(X, LABELS, epochs=2, progress=False)
    with pytest.raises(ArgumentError, match="sample_weight differs"):
        resumed.fit(X, LABELS, epochs=2, sample_weight=WEIGHTS + 1, progress=False)


def test_balanced_sampling_draws_each_class_equally_often_and_all_members():
    for epoch in range(3):
        order = balanced_order(LABELS, seed=0, epoch=epoch)

        assert np.bincount(LABELS[order]).tolist() == [20, 20, 20]
        assert set(order[LABELS[order] == 2]) == set(range(55, 60))
        assert np.bincount(order[LABELS[order] == 2])[55:].tolist() == [4] * 5  # 20 draws of 5, evenly
    assert not np.array_equal(balanced_order(LABELS, 0, 0), balanced_order(LABELS, 0, 1))


def test_a_loss_that_cannot_take_weights_is_refused_before_the_first_step():
    def worst(op, y, t):
        return op.ReduceMax(op.Abs(op.Sub(y, t)), keepdims=0)

    model = onward.make_trainable(network(4, 3), loss=worst, label={"t": ("float32", ("N", 3))})
    trainer = onward.Trainer(model)
    before = trainer.parameters

    with pytest.raises(ArgumentError, match=r"A141.*`ReduceMax`"):
        trainer.fit(X, VALUES, sample_weight=WEIGHTS, progress=False)

    np.testing.assert_array_equal(trainer.parameters["W1"], before["W1"])


def test_wrong_weights_are_refused_before_the_first_step():
    trainer = onward.Trainer(classifier())

    with pytest.raises(DataError, match=r"T145.*2 sample weights are negative"):
        trainer.fit(X, LABELS, sample_weight=np.r_[[-1.0, np.nan], np.ones(58)], progress=False)
    with pytest.raises(ArgumentError, match=r"sample_weight has the shape \(5,\)"):
        trainer.fit(X, LABELS, sample_weight=np.ones(5), progress=False)
    with pytest.raises(ArgumentError, match="class_weight is 'heavy'"):
        trainer.fit(X, LABELS, class_weight="heavy", sampler="odd", progress=False)
    with pytest.raises(ArgumentError, match="names classes that the data does not have: cat"):
        trainer.fit(X, LABELS, class_weight={"cat": 2.0}, progress=False)
    with pytest.raises(ArgumentError, match=r"does not have: 3\n.*class numbers from 0 to 2"):
        trainer.fit(X, LABELS, class_weight={0: 1.0, 3: 2.0}, progress=False)
    assert trainer.steps == 0


def test_the_weighted_file_is_valid_and_leaves_the_model_as_it_was():
    model = classifier()
    weighted, name = add_sample_weight(model)

    assert onward.check(weighted).ok
    assert weighted.targets == ["labels", name]
    assert model.targets == ["labels"]
