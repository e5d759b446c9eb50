"""Images damaged in the middle: named, left out on request, and no reason to lose a run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.cli.speech import spoken
from onward.errors import ArgumentError, DataError
from onward.train import Preparation, Trainer
from train import photos

SKIP = dataclasses.replace(photos.SCALED, damaged="skip")


def spoil(path: Path) -> None:
    """Damage a PNG in the middle: its first and last bytes are right."""
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(path, "PNG")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve photos, of which two are damaged; one of them is the very first."""
    made = photos.write_photos(tmp_path / "photos", count=4, suffix="png")
    spoil(made / "bud" / "0.png")
    spoil(made / "petal" / "3.png")
    return made


def fit(folder, **options):
    trainer = Trainer(photos.model(), threads=1)
    settings = {"epochs": 2, "batch_size": 4, "shuffle": False, "progress": "none", "preparation": SKIP, **options}
    trainer.fit(str(folder), **settings)
    return trainer


def test_damaged_images_are_left_out_counted_and_named(folder):
    with pytest.warns(UserWarning, match=r"left out 2 of 12 images.*bud/0\.png.*petal/3\.png"):
        trainer = fit(folder)

    assert trainer.steps == 6  # ten samples, four at a time


def test_a_run_without_the_damaged_images_gives_the_bytes_of_a_folder_without_them(folder):
    with pytest.warns(UserWarning, match="left out 2"):
        skipped = fit(folder, shuffle=True)
    for name in ("bud/0.png", "petal/3.png"):
        (folder / name).unlink()

    plain = fit(folder, shuffle=True, preparation=photos.SCALED)

    for name, value in plain.state.items():
        np.testing.assert_array_equal(skipped.state[name], value)


@pytest.mark.filterwarnings("ignore:left out")
def test_a_run_that_leaves_images_out_is_resumed_bit_for_bit(folder, tmp_path):
    whole = fit(folder, epochs=4, shuffle=True, seed=3)
    fit(folder, epochs=2, shuffle=True, seed=3, checkpoint=tmp_path / "run")

    resumed = Trainer.resume(tmp_path / "run")
    resumed.fit(str(folder), epochs=4, preparation=SKIP, progress="none")

    for name, value in whole.state.items():
        np.testing.assert_array_equal(resumed.state[name], value)


@pytest.mark.filterwarnings("ignore:left out")
def test_the_model_does_not_keep_the_wish(folder):
    trainer = fit(folder)

    stored = Trainer(trainer.to_model()).preparation

    assert (stored.scale, stored.damaged) == (photos.SCALED.scale, "error")
    with pytest.raises(DataError, match=r"0\.png.*cannot be decoded"):
        Trainer(trainer.to_model()).evaluate(str(folder))


def test_a_class_of_damaged_images_alone_is_no_class(folder):
    for path in (folder / "leaf").glob("*.png"):
        spoil(path)

    with pytest.warns(UserWarning, match="left out 6 of 12"):
        trainer = fit(folder)

    assert trainer.preparation.classes == ("bud", "petal")


def test_a_folder_of_damaged_images_alone_is_refused_without_the_hint_to_skip(folder):
    for path in folder.rglob("*.png"):
        spoil(path)

    with pytest.raises(DataError, match="cannot be decoded") as caught:
        fit(folder)

    assert len(caught.value.diagnostics) == 12
    assert not any(d.hint for d in caught.value.diagnostics)


def test_an_empty_file_in_the_first_place_is_listed_with_all_others(folder):
    for name in ("bud/0.png", "leaf/1.png"):
        (folder / name).write_bytes(b"")

    with pytest.raises(DataError) as caught:
        fit(folder, preparation=photos.SCALED)

    assert re.findall(r"\w+/\d\.png(?=` cannot)", str(caught.value)) == ["bud/0.png", "leaf/1.png"]
    assert [bool(d.hint) for d in caught.value.diagnostics] == [False, True]


def test_predictions_leave_damaged_images_out_and_keep_the_names_of_the_others(folder):
    trainer = Trainer(photos.model())

    with pytest.warns(UserWarning, match="left out 2"):
        rows = list(trainer.predictions(str(folder), preparation=SKIP))

    assert len(rows) == 10
    plain = {row["file"]: row for row in trainer.predictions(str(folder / "leaf"), preparation=photos.SCALED)}
    assert [row for row in rows if row["file"] == "leaf/2.png"] == [{**plain["2.png"], "file": "leaf/2.png"}]


def test_another_word_is_refused():
    with pytest.raises(ArgumentError, match="one of: error, skip"):
        Preparation(damaged="ignore")


def bias_of(path: Path) -> np.ndarray:
    return onnx.numpy_helper.to_array(next(i for i in onnx.load(path).graph.initializer if i.name == "bias"))


def command(*arguments):
    return CliRunner().invoke(build_app(), [str(a) for a in arguments])


def test_what_was_asked_for_is_written_of_the_state_before_a_damaged_image(folder, tmp_path):
    """The first batches are whole; the damaged image is found while the run goes on."""
    (folder / "bud" / "0.png").unlink()
    onward.save(photos.model(), tmp_path / "net.train.onnx")
    tuned = tmp_path / "tuned.onnx"
    arguments = ["train", tmp_path / "net.train.onnx", "--data", folder, "--scale", "1/255", "--batch-size", 4]
    arguments += ["--no-shuffle", "--epochs", 1, "--inference", tuned]

    result = command(*arguments)

    assert result.exit_code == 1
    assert re.search(r"stopped at step 2; writing `.*tuned\.onnx` of that state", result.stderr)
    assert "3.png` cannot be decoded" in str(result.exception)
    (hint,) = [spoken(d).hint for d in result.exception.diagnostics]
    assert hint == "--damaged skip leaves out the images that cannot be decoded"
    onnx.checker.check_model(tuned)
    assert not np.array_equal(bias_of(tuned), bias_of(tmp_path / "net.train.onnx"))

    with pytest.warns(UserWarning, match="left out 1 of 11 images"):
        assert command(*arguments, "--damaged", "skip").exit_code == 0
