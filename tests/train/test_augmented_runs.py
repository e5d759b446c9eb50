"""Runs with augmentation and worker processes: equal bytes, refusals before the first step."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onward
from onward import augment
from onward.compiler.program import TensorSpec
from onward.errors import ArgumentError, DataError
from onward.train import Callback, Trainer
from onward.train.data import BatchRequest, ColumnSource, Preparation, as_source, match
from onward.train.data.augmenting import bind, with_probabilities
from onward.train.data.reader import Reader
from train import photos
from train.photos import fit, worker_processes

ALL = "flip,crop=0.5,rotate=20,colour=0.3,erase=0.5"
HERE = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("importable")


def same_state(first: Trainer, second: Trainer) -> bool:
    mine, other = first.state, second.state
    return mine.keys() == other.keys() and all(mine[n].tobytes() == other[n].tobytes() for n in mine)


def feeds_of(source, inputs, targets, aug, *, workers=0, batch_size=4, preparation=None, **request):
    augmentations = augment.from_text(aug) if isinstance(aug, str) and aug else tuple(aug)
    preparation = with_probabilities(source, targets, preparation or Preparation(), augmentations)
    matching = match(source, inputs, targets, preparation)
    with Reader(source, matching, bind(augmentations, source, matching), workers, 2) as reader:
        return list(reader.feeds(BatchRequest(batch_size, **{"shuffle": True, **request})))


def joined(feeds):
    return {name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]}


def specs(model):
    program = Trainer(model).program
    return program.inputs, program.targets


# ------------------------------------------------------------------ equal bytes


@pytest.mark.parametrize("aug", [None, ALL, [photos.darker, "flip"]], ids=["plain", "all", "function"])
def test_the_number_of_workers_does_not_change_a_bit(folder, aug):
    here = fit(folder, aug)

    for workers in (1, 3):
        assert same_state(here, fit(folder, aug, workers))
    assert not worker_processes()


def test_augmentation_changes_the_run_and_the_seed_changes_the_augmentation(folder):
    plain, flipped = fit(folder, None, shuffle=False), fit(folder, "flip", shuffle=False)

    assert not same_state(plain, flipped)
    assert not same_state(flipped, fit(folder, "flip", shuffle=False, seed=1))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("aug", [ALL, f"{ALL},mixup=0.4,cutmix"])
def test_a_sample_does_not_depend_on_the_size_of_the_batches(folder, aug, shuffle):
    model = photos.soft_model() if "mixup" in aug else photos.model()
    source = as_source(str(folder), None, *specs(model), Preparation())

    small, large = (
        joined(feeds_of(source, *specs(model), aug, batch_size=n, shuffle=shuffle, workers=w))
        for n, w in ((3, 0), (10, 2))
    )

    for name in small:
        assert small[name].tobytes() == large[name].tobytes()


def test_the_parts_of_several_processes_make_the_whole_batch(folder):
    model = photos.soft_model()
    source = as_source(str(folder), None, *specs(model), Preparation())
    aug = f"{ALL},mixup=0.4"

    whole = feeds_of(source, *specs(model), aug, batch_size=8)
    parts = [feeds_of(source, *specs(model), aug, batch_size=8, part=p, parts=3) for p in range(3)]

    for i, batch in enumerate(whole):
        together = np.concatenate([part[i]["images"] for part in parts])
        assert together.tobytes() == batch["images"].tobytes()
        assert all(part[i]["images"].total == 8 for part in parts)


def test_each_epoch_is_augmented_anew_and_a_repeated_sample_twice(folder):
    model = photos.model()
    source = as_source(str(folder), None, *specs(model), Preparation())

    first, second = (
        joined(feeds_of(source, *specs(model), "flip,rotate=20", shuffle=False, epoch=e))["images"] for e in (0, 1)
    )
    source.order = lambda request: np.zeros(8, np.int64)
    repeated = joined(feeds_of(source, *specs(model), "rotate=20"))["images"]

    assert not np.array_equal(first, second)
    assert len({image.tobytes() for image in repeated}) == 8


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run, logs):
        if run.position.step == self.step:
            raise RuntimeError("stopped by the test")


def test_a_run_that_is_killed_resumes_with_another_number_of_workers_to_equal_bytes(folder, tmp_path):
    script = f"""
import os, signal, sys
sys.path[:0] = [{str(HERE)!r}]
from train import photos
from train.photos import fit, worker_processes
from onward.train import Callback, Trainer

class Kill(Callback):
    def on_step_end(self, run, logs):
        if run.position.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)

Trainer(photos.soft_model(), threads=1).fit(
    {str(folder)!r}, epochs=3, batch_size=5, preparation=photos.SCALED, progress="none", workers=2,
    augment="{ALL},mixup=0.3,cutmix", checkpoint={str(tmp_path / "run")!r}, checkpoint_every=3, callbacks=[Kill()],
)
"""
    whole = fit(folder, f"{ALL},mixup=0.3,cutmix", 1, photos.soft_model(), epochs=3)

    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    trainer = Trainer.resume(tmp_path / "run")
    assert trainer.steps == 6
    trainer.fit(str(folder), workers=0, progress="none")

    assert same_state(whole, trainer)


def test_a_resumed_run_goes_on_with_its_augmentation_and_refuses_another(folder, tmp_path):
    with pytest.raises(RuntimeError):
        fit(folder, "flip", checkpoint=tmp_path, checkpoint_every=1, callbacks=[StopAt(4)])

    with pytest.raises(ArgumentError, match="augment differs from the run that is resumed"):
        Trainer.resume(tmp_path).fit(str(folder), augment="rotate", progress="none")
    trainer = Trainer.resume(tmp_path)
    trainer.fit(str(folder), progress="none")

    assert same_state(trainer, fit(folder, "flip"))


def test_a_resumed_run_with_a_function_needs_the_function_again(folder, tmp_path):
    with pytest.raises(RuntimeError):
        fit(folder, photos.darker, checkpoint=tmp_path, checkpoint_every=1, callbacks=[StopAt(4)])

    with pytest.raises(ArgumentError, match="started with a function that augments"):
        Trainer.resume(tmp_path).fit(str(folder), progress="none")
    trainer = Trainer.resume(tmp_path)
    trainer.fit(str(folder), augment=photos.darker, progress="none")

    assert same_state(trainer, fit(folder, photos.darker))


def test_validation_data_is_not_augmented(folder):
    options = {"validation_data": str(folder), "learning_rate": 0.0, "epochs": 1}

    plain, augmented = fit(folder, None, **options), fit(folder, "erase=1,rotate=90", **options)

    assert plain.history.epochs[0]["val_loss"] == augmented.history.epochs[0]["val_loss"]
    assert plain.history.epochs[0]["loss"] != augmented.history.epochs[0]["loss"]


# ------------------------------------------------------------------ what the model gets


def test_arrays_of_images_are_augmented_in_any_layout():
    rng = np.random.default_rng(0)
    plane = rng.integers(0, 256, (6, 8, 8)).astype(np.uint8)
    inputs = (TensorSpec("x", "float32", ("N", 1, 8, 8)),)
    last = (TensorSpec("x", "float32", ("N", 8, 8, 1)),)
    flat = (TensorSpec("x", "float32", ("N", 64)),)

    made = [
        joined(feeds_of(ColumnSource({"x": x}), spec, (), "rotate=30,flip"))["x"].reshape(6, 8, 8)
        for x, spec in ((plane, inputs), (plane[:, None], inputs), (plane[..., None], last), (plane, flat))
    ]

    for other in made[1:]:
        np.testing.assert_array_equal(made[0], other)
    assert not np.array_equal(np.sort(made[0].reshape(6, -1)), np.sort(plane.reshape(6, -1)))


def test_a_mask_moves_with_its_image():
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 5, (8, 9, 9))
    inputs, targets = (TensorSpec("x", "float32", ("N", 1, 9, 9)),), (TensorSpec("t", "int64", ("N", 9, 9)),)
    source = ColumnSource({"x": (classes * 50).astype(np.uint8), "t": classes})

    made = joined(feeds_of(source, inputs, targets, "flip,erase=0"))

    np.testing.assert_array_equal(made["x"][:, 0], made["t"] * 50)
    assert not np.array_equal(np.sort(made["t"].reshape(8, -1)[:, :9]), np.sort(classes.reshape(8, -1)[:, :9]))


def test_mixup_is_the_weighted_mean_of_two_samples_and_of_their_targets():
    x = np.eye(6, dtype=np.float32) * 10
    inputs, targets = (TensorSpec("x", "float32", ("N", 6)),), (TensorSpec("t", "float32", ("N", 6)),)
    source = ColumnSource({"x": x, "t": np.arange(6)})

    made = joined(feeds_of(source, inputs, targets, "mixup=1"))

    np.testing.assert_allclose(made["t"].sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(made["x"], made["t"] * 10, rtol=1e-5)
    assert ((made["t"] > 0).sum(axis=1) == 2).all()
    order = np.argmax(made["t"], axis=1)
    assert len(set(order.tolist())) > 1


def test_cutmix_pastes_a_rectangle_and_weighs_the_targets_by_its_pixels():
    x = np.repeat(np.arange(1.0, 7.0), 64).reshape(6, 1, 8, 8).astype(np.float32)
    inputs, targets = (TensorSpec("x", "float32", ("N", 1, 8, 8)),), (TensorSpec("t", "float32", ("N", 6)),)
    source = ColumnSource({"x": x, "t": np.arange(6)})

    made = joined(feeds_of(source, inputs, targets, "cutmix", epoch=3))

    counts = np.stack([(made["x"] == value).sum(axis=(1, 2, 3)) for value in range(1, 7)], axis=1) / 64
    np.testing.assert_allclose(made["t"], counts, atol=1e-6)
    assert ((counts > 0).sum(axis=1) == 2).any()


def test_drawn_labels_are_those_of_one_of_the_two_samples():
    x = np.eye(50, dtype=np.float32)
    inputs, targets = (TensorSpec("x", "float32", ("N", 50)),), (TensorSpec("t", "int64", ("N",)),)
    source = ColumnSource({"x": x, "t": np.arange(50)})

    made = joined(feeds_of(source, inputs, targets, [augment.Mixup(1.0, labels="draw")]))

    share = made["x"][np.arange(50), made["t"]]
    assert (share > 0).all()
    assert 0.5 < share.mean() < 0.85  # 2/3 on average for Beta(1, 1)


def test_mixed_labels_train_a_loss_of_probabilities_and_evaluate_with_class_numbers(folder):
    trainer = fit(folder, "mixup=0.2", network=photos.soft_model(), metrics=["accuracy"], validation_data=0.25)

    assert trainer.preparation.one_hot
    assert 0 <= trainer.history.epochs[-1]["val_accuracy"] <= 1
    assert trainer.evaluate(str(folder))["loss"] > 0


def test_sounds_are_augmented():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 1, 400)).astype(np.float32)
    inputs = (TensorSpec("x", "float32", ("N", 1, 400)),)

    here, elsewhere = (
        joined(feeds_of(ColumnSource({"x": x}), inputs, (), "gain,noise,shift", workers=w))["x"] for w in (0, 2)
    )

    assert here.tobytes() == elsewhere.tobytes()
    assert not np.isin(here, x).any(axis=2).all()


def test_batches_of_an_iterable_are_augmented_and_resumed_alike():
    rng = np.random.default_rng(0)
    batches = [{"x": rng.integers(0, 256, (4, 8, 8)).astype(np.uint8)} for _ in range(3)]
    inputs = (TensorSpec("x", "float32", ("N", 1, 8, 8)),)
    source = as_source(batches, None, inputs, (), Preparation())

    whole = feeds_of(source, inputs, (), "rotate=30,mixup")
    rest = feeds_of(source, inputs, (), "rotate=30,mixup", start=2)

    assert whole[2]["x"].tobytes() == rest[0]["x"].tobytes()
    assert not np.array_equal(whole[0]["x"][:, 0], batches[0]["x"])


def test_a_crop_of_a_photo_happens_before_it_is_resized(tmp_path):

    stripes = np.zeros((480, 480), np.uint8)
    stripes[:, ::40] = stripes[:, 1::40] = stripes[:, 2::40] = 255
    (tmp_path / "a").mkdir()
    Image.fromarray(stripes).save(tmp_path / "a" / "1.png")
    inputs = (TensorSpec("images", "float32", ("N", 1, 48, 48)),)
    targets = (TensorSpec("labels", "int64", ("N",)),)
    crop = augment.Crop(0.02, ratio=1.0)
    source = as_source(str(tmp_path), None, inputs, targets, Preparation())

    cropped = [joined(feeds_of(source, inputs, targets, [crop], epoch=e))["images"] for e in range(20)]

    whole = joined(feeds_of(source, inputs, targets, []))["images"]  # thin stripes are grey at a tenth of the size
    assert max(c.max() for c in cropped) > 1.5 * whole.max()


# ------------------------------------------------------------------ refusals before the first step


def problems(folder, aug, model=None, **options):
    trainer = Trainer(model or photos.model())
    with pytest.raises((DataError, ArgumentError)) as caught:
        trainer.fit(str(folder), augment=aug, preparation=photos.SCALED, progress="none", **options)
    assert trainer.steps == 0
    return caught.value


def test_class_numbers_cannot_be_mixed_and_the_error_says_what_can(folder):
    error = problems(folder, "mixup,cutmix")

    assert [d.code for d in error.diagnostics] == ["T170", "T170"]
    assert "`mixup` mixes targets, and `labels` holds class numbers" in str(error)
    assert "losses.CrossEntropy(targets='probability')" in str(error)
    assert "augment.Cutmix(labels='draw')" in str(error)


def test_images_need_images_and_sounds_need_sounds(folder):
    x, y = np.zeros((8, 3), np.float32), np.zeros((8, 2), np.float32)
    trainer = Trainer(onward.make_trainable(onward.samples.perceptron(), loss="mse"))

    with pytest.raises(DataError) as caught:
        trainer.fit(x, y, augment="flip,colour,cutmix", progress="none")

    assert [d.code for d in caught.value.diagnostics] == ["T170"] * 3
    assert "x.reshape(-1, height, width)" in str(caught.value)
    assert "`gain` needs sounds" in str(problems(folder, "gain"))


def test_coordinates_are_not_left_behind():
    x = np.zeros((4, 8, 8), np.uint8)
    inputs = (TensorSpec("x", "float32", ("N", 1, 8, 8)),)

    def bound(target, shape, dtype="float32"):
        targets = (TensorSpec("t", dtype, ("N", *shape)),)
        feeds_of(ColumnSource({"x": x, "t": target}), inputs, targets, "flip")

    with pytest.raises(DataError, match="may hold places in the image"):
        bound(np.array([[0.2, 0.4], [1, 2], [3, 4], [0, 0]], np.float32), (2,))
    with pytest.raises(DataError, match="may hold places in the image"):
        bound(np.zeros((4, 5, 4), np.float32), (5, 4))
    bound(np.ones((4, 1), np.float32) * 37.5, (1,))  # an age
    bound(np.array([[0, 1, 1]] * 4, np.float32), (3,))  # several classes at once
    bound(np.array([[0.2, 0.5, 0.3]] * 4, np.float32), (3,))  # probabilities
    bound(np.zeros((4, 8, 8), np.int64), (8, 8), "int64")  # masks


def test_a_function_that_fails_names_the_sample_and_its_cause(folder):
    error = problems(folder, photos.returns_nothing)
    assert error.code == "T171"
    assert "end the function with `return sample`" in str(error)
    error = problems(folder, photos.returns_floats)
    assert "changed the element type of `images`" in str(error)
    assert ".astype('uint8')" in str(error)
    assert "changed the shape of `labels`" in str(error)
    photos.failing.parent = 0
    error = problems(folder, photos.failing)
    assert "`failing` failed: KeyError: 'no such key'" in str(error)
    assert "of the training data" in str(error)
    assert isinstance(error.__cause__.__cause__, KeyError)


def test_a_function_that_cannot_be_sent_to_a_worker_is_refused(folder):
    error = problems(folder, [lambda sample, rng: sample, photos.darker], workers=1)

    assert error.code == "A101"
    assert "cannot be sent to worker processes" in str(error)
    assert "workers=0" in str(error)


def test_workers_are_refused_for_an_iterable():
    trainer = Trainer(onward.make_trainable(onward.samples.perceptron(), loss="mse"))
    batches = [(np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32))]

    with pytest.raises(ArgumentError, match="an iterable reads its data itself"):
        trainer.fit(batches, workers=2, progress="none")
    with pytest.raises(ArgumentError, match="workers is -1"):
        trainer.fit(batches, workers=-1, progress="none")


# ------------------------------------------------------------------ the command


def test_the_command_augments_with_workers_and_resumes(folder, tmp_path):
    onward.save(photos.model(), tmp_path / "net.train.onnx")
    command = [sys.executable, "-m", "onward", "train", str(tmp_path / "net.train.onnx"), "--data", str(folder)]
    command += ["--scale", "1/255", "-b", "5", "-q"]
    run = ["--checkpoint", str(tmp_path / "run")]

    def call(*more):
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=120)

    first = call(*run, "--epochs", "1", "--augment", "flip,crop=0.8", "--augment", "rotate=15", "--workers", "1")
    second = call(*run, "--epochs", "2", "--resume")
    wrong = call("--augment", "flop,mixup=0", "--epochs", "1")
    mixed = call("--augment", "mixup", "--epochs", "1")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    resumed = Trainer.resume(tmp_path / "run")
    whole = fit(folder, "flip,crop=0.8,rotate=15")
    for name, value in whole.parameters.items():
        np.testing.assert_allclose(resumed.parameters[name], value, rtol=1e-5, atol=1e-7)
    assert wrong.returncode == 1
    assert "no such augmentation `flop`" in wrong.stderr
    assert "`alpha` of `Mixup` is out of range" in wrong.stderr
    assert "Traceback" not in wrong.stderr + mixed.stderr
    assert "--set-loss targets=probability" in mixed.stderr


# ------------------------------------------------------------------ reading


@pytest.mark.parametrize("shape", [(50,), (50, 7), (9, 3, 40, 200)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_inputs_are_normalised_to_the_bits_of_the_formula(shape, dtype):
    x = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    spec = TensorSpec("x", "float32", ("N", *shape[1:]))
    mean = [0.4, 0.5, 0.6] if len(shape) == 4 else 0.3

    made = joined(
        feeds_of(ColumnSource({"x": x}), (spec,), (), "", preparation=Preparation(1 / 255, mean, 0.7), shuffle=False)
    )["x"]

    channels = np.asarray(mean, np.float32).reshape((3, 1, 1) if len(shape) == 4 else ())
    expected = (x.astype(np.float32) * np.float32(1 / 255) - channels) / np.float32(0.7)
    assert made.tobytes() == expected.tobytes()


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_to_nearly_the_same_pixels(tmp_path, monkeypatch):
    from sklearn.datasets import load_sample_image

    from onward.reading import pictures

    Image.fromarray(load_sample_image("china.jpg")).resize((2560, 1708)).save(tmp_path / "1.jpg", quality=95)
    reader = pictures.PictureReader([str(tmp_path / "1.jpg")], 3, 96, 128, may_resize=True)
    opened, size = pictures.open_picture(str(tmp_path / "1.jpg"), "RGB", (128, 96))

    fast = reader.read(0)
    monkeypatch.setattr(pictures, "_GAP", 1e3)
    exact = reader.read(0)

    assert opened.size == (320, 214)
    assert size == (320, 213.5)
    assert np.abs(fast.astype(int) - exact.astype(int)).mean() < 0.8  # of 255; 1.6 with the size rounded


@pytest.mark.parametrize(("cores", "files", "expected"), [(2, 600, 0), (8, 600, 4), (64, 600, 8), (8, 100, 0)], ids=str)
def test_workers_are_the_default_for_many_images_and_cores(folder, monkeypatch, cores, files, expected):
    from onward.train.data import reader

    model = photos.model()
    source = as_source(str(folder), None, *specs(model), Preparation())
    monkeypatch.setattr(type(source), "size", files)
    monkeypatch.setattr(reader.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    matching = match(source, *specs(model), Preparation())

    assert reader.default_workers(source, bind((), source, matching).samples) == expected
