"""Features that were built apart, used together: weights, mixing, folders, phases, schedules."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import onward
from onward import Phase, augment, losses
from onward.schedules import Cosine
from onward.train import Callback, ReduceOnPlateau
from train import photos
from train.tables import classifier, network

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype("f")
LABELS = np.array([0] * 24 + [1] * 10 + [2] * 6)


class Feeds(Callback):
    """Keeps the feeds of every step."""

    def __init__(self) -> None:
        self.found: list[dict[str, np.ndarray]] = []

    def on_fit_begin(self, run: object) -> None:
        step = run.step

        def keep(feeds, entry):
            self.found.append({n: np.array(a) for n, a in feeds.items()})
            return step(feeds, entry)

        run.step = keep


def feeds_of(model, **options):
    seen = Feeds()
    onward.Trainer(model).fit(X, LABELS, batch_size=8, progress=False, callbacks=[seen], **options)
    return {name: np.concatenate([f[name] for f in seen.found]) for name in seen.found[0]}


@pytest.mark.parametrize("settings", [{"class_weight": {"leaf": 3}}, {"sampler": "balanced"}])
def test_a_folder_of_photos_takes_class_weights_and_balanced_sampling(tmp_path, settings):
    folder = photos.write_photos(tmp_path / "photos", 4)
    seen = Feeds()

    onward.Trainer(photos.model()).fit(
        folder, preparation=photos.SCALED, progress=False, callbacks=[seen], batch_size=4, **settings
    )

    labels = np.concatenate([f["labels"] for f in seen.found])
    assert np.bincount(labels).tolist() == [4, 4, 4]
    if "class_weight" in settings:
        weights = np.concatenate([f["sample_weight"] for f in seen.found])
        np.testing.assert_array_equal(weights, np.where(labels == 1, 3, 1))


def test_a_label_that_mixup_draws_has_the_weight_of_its_class():
    weights = {0: 1.0, 1: 5.0, 2: 9.0}

    made = feeds_of(classifier(), augment=[augment.Mixup(1.0, labels="draw")], class_weight=weights)

    np.testing.assert_array_equal(made["sample_weight"], [weights[c] for c in made["labels"]])


@pytest.mark.parametrize("settings", [{"class_weight": {1: 5.0, 2: 0.0}}, {"sample_weight": 1.0 + np.arange(40)}])
def test_mixed_samples_weigh_each_label_by_its_own_weight(settings):
    soft = losses.CrossEntropy(targets="probability")

    def make():
        return onward.make_trainable(network(4, 3), loss=soft, optimizer=onward.SGD(0.1))

    mixed = feeds_of(make(), augment="mixup=1", **settings)
    plain = feeds_of(make(), augment="mixup=1")  # the same partners and shares, without weights
    order = feeds_of(make(), preparation=onward.train.Preparation(one_hot=True), **settings)  # nothing is mixed

    one, other = order["labels"], np.roll(order["labels"], -1, axis=0)
    w_one, w_other = order["sample_weight"], np.roll(order["sample_weight"], -1)
    differs = (one != other).any(axis=1)
    share = (plain["labels"] * one).sum(axis=1)[:, None]  # of the first label, where the labels differ
    expected = share * w_one[:, None] * one + (1 - share) * w_other[:, None] * other
    found = mixed["sample_weight"][:, None] * mixed["labels"]
    assert differs.sum() > 10
    np.testing.assert_allclose(found[differs], expected[differs], rtol=1e-5, atol=1e-6)


def test_the_history_shows_the_rate_of_each_phase_with_its_own_schedule():
    cosine = Cosine(1e-2, steps=20)
    for phases, expected in (
        ([Phase(train="W2", epochs=1), Phase(epochs=2, learning_rate=cosine)], [1e-3, cosine(5), cosine(10)]),
        ([Phase(train="W2", epochs=2, learning_rate=cosine), Phase(epochs=1)], [cosine(5), cosine(10), 1e-3]),
    ):
        model = onward.make_trainable(network(4, 3), loss="cross_entropy", optimizer=onward.SGD(1e-3), phases=phases)

        history = onward.Trainer(model).fit(X, LABELS, batch_size=8, progress=False)

        np.testing.assert_allclose(history["learning_rate"], expected, rtol=1e-5)


def test_the_search_for_a_rate_trains_the_phase_that_comes_next():
    def found(**options):
        model = onward.make_trainable(network(4, 3), loss="cross_entropy", optimizer=onward.SGD(1e-3), **options)
        return onward.Trainer(model).find_learning_rate(X, LABELS, steps=20, highest=1.0)

    in_phases = found(phases=[Phase(train="W2", epochs=1), Phase(epochs=1)])

    np.testing.assert_allclose(in_phases.losses, found(train="W2").losses, rtol=1e-5)


def test_a_preparation_that_is_given_keeps_the_names_of_the_classes(tmp_path):
    folder = photos.write_photos(tmp_path / "photos", 4)
    model = onward.make_trainable(onward.to_inference(photos.model()), classes=["petal", "leaf", "bud"])
    seen, trainer = Feeds(), onward.Trainer(model)

    trainer.fit(folder, preparation=photos.SCALED, progress=False, callbacks=[seen], shuffle=False, batch_size=12)

    assert trainer.preparation.classes == ("petal", "leaf", "bud")
    assert seen.found[0]["labels"].tolist() == [2] * 4 + [1] * 4 + [0] * 4  # bud, leaf, petal


def test_evaluate_numbers_some_of_the_classes_as_the_model_does_whatever_its_preparation(tmp_path):
    folder = photos.write_photos(tmp_path / "photos", 4)
    trainer = onward.Trainer(photos.model())
    trainer.fit(folder, preparation=photos.SCALED, progress=False)
    shutil.rmtree(folder / "bud")

    again = trainer.evaluate(folder, preparation=photos.SCALED)

    assert again == trainer.evaluate(folder)


def test_a_plateau_at_the_end_of_a_phase_does_not_reduce_the_rate_of_the_next():
    phases = [Phase(train="W2", epochs=2), Phase(epochs=2, learning_rate=1e-2)]
    model = onward.make_trainable(network(4, 3), loss="cross_entropy", optimizer=onward.SGD(1e-3), phases=phases)
    never_better = ReduceOnPlateau(monitor="loss", patience=1, factor=0.1, min_delta=10)

    history = onward.Trainer(model).fit(X, LABELS, batch_size=8, progress=False, callbacks=[never_better])

    np.testing.assert_allclose(history["learning_rate"], [1e-3, 1e-3, 1e-2, 1e-3], rtol=1e-5)


def test_one_class_with_a_name_is_a_label_with_its_own_probability():
    model = onward.make_trainable(network(4, 3), classes=["rare"], loss="bce_with_logits")
    trainer = onward.Trainer(model)

    rows = list(trainer.predictions(X))

    np.testing.assert_allclose([row["rare"] for row in rows], 1 / (1 + np.exp(-trainer.predict(X)[:, 0])), rtol=1e-5)
