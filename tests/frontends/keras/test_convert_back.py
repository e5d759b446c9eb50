"""`onward convert model.train.onnx -o model.keras`, or a folder; refusals write nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import onward
from models import batch, perceptron
from onward.cli import build_app
from onward.errors import MissingExtra, OnwardError


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> onward.TrainingModel:
    monkeypatch.chdir(tmp_path)
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    onward.save(model, "net.train.onnx")
    return model


def convert(line: str) -> str:
    return CliRunner().invoke(build_app(), ["convert", *line.split()], catch_exceptions=False).stdout


def test_a_keras_file_goes_on_with_the_curve(source: onward.TrainingModel) -> None:
    said = convert("net.train.onnx -o net.keras")

    model = keras.saving.load_model("net.keras")
    x, t = batch(seed=0).values()
    wanted = float(onward.Trainer(source).step(batch(seed=0))["loss"])
    assert "compiled with the loss and the optimizer of the file" in said
    assert float(np.ravel(model.train_on_batch(x, t, return_dict=True)["loss"])[0]) == pytest.approx(wanted, rel=1e-5)


def test_a_folder_becomes_a_saved_model(source: onward.TrainingModel) -> None:
    """In a process of its own, without Onward."""
    pytest.importorskip("tensorflow")
    convert("net.train.onnx -o saved/")
    np.savez("batch.npz", **batch(seed=0))
    code = (
        "import numpy as np, tensorflow as tf, sys; d = np.load('batch.npz'); m = tf.saved_model.load('saved');"
        "print(float(m.train_step(*d.values())['loss']), 'onward' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    loss, imported = done.stdout.split()
    assert float(loss) == pytest.approx(float(onward.Trainer(source).step(batch(seed=0))["loss"]), rel=1e-5)
    assert imported == "False"
    with pytest.raises(OnwardError, match="a folder that does not exist, or is empty"):
        convert("net.train.onnx -o saved/")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("net.train.onnx -o net.h5", "the name of a .keras file, or of a folder"),
        ("net.h5 -o net.keras", "a .keras file of Keras 3, a SavedModel, or a training model"),
        ("net.keras -o other.keras", "the name of a training model"),
        ("net.train.onnx --entry no -o net.keras", "needed: one of: train"),
        ("missing.onnx -o net.keras", "missing.onnx"),
    ],
)
def test_refusals_write_nothing(line: str, problem: str) -> None:
    before = sorted(Path().iterdir())

    with pytest.raises(OnwardError, match=problem):
        convert(line)

    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(("output", "package"), [("net.keras", "keras"), ("saved/", "tensorflow")])
def test_a_missing_framework_is_told_with_the_command(
    output: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    before = sorted(Path().iterdir())

    with pytest.raises(MissingExtra, match=rf"pip install 'onward\[{package}\]'"):
        convert(f"net.train.onnx -o {output}")

    assert sorted(Path().iterdir()) == before
