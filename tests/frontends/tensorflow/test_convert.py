"""`onward convert` of a SavedModel, and the prototype of 2019."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

import onward
from frontends.tensorflow.tf_models import perceptron
from onward.cli import build_app

ROOT = Path(__file__).parents[3]


def saved(path: Path) -> None:
    case = perceptron()
    case.module.__call__.get_concrete_function(tf.TensorSpec([None, 5], name="x"))
    tf.saved_model.save(case.module, str(path))


def run(*line: str | Path):
    return CliRunner().invoke(build_app(), ["convert", *map(str, line)], catch_exceptions=False)


def test_convert_writes_a_training_model(tmp_path):
    saved(tmp_path / "saved")

    done = run(tmp_path / "saved", "-o", tmp_path / "out.onnx", "--loss", "mse", "--optimizer", "sgd")

    assert done.exit_code == 0
    assert "4 parameters" in done.stdout
    assert "loss mse (--loss), optimizer sgd (--optimizer)" in done.stdout
    model = onward.load(tmp_path / "out.onnx")
    assert (model.inputs, model.targets) == (["x"], ["target"])
    feeds = {"x": np.ones((2, 5), np.float32), "target": np.ones((2, 3), np.float32)}
    trainer = onward.Trainer(model)
    assert trainer.step(feeds)["loss"] > trainer.step(feeds)["loss"]


def test_convert_of_another_folder_writes_nothing(tmp_path):
    with pytest.raises(onward.OnwardError, match="is not a SavedModel"):
        run(tmp_path, "-o", tmp_path / "out.onnx")

    assert not (tmp_path / "out.onnx").exists()


def test_a_refused_saved_model_writes_nothing(tmp_path):
    w = tf.Variable(tf.eye(3), name="w")
    module = tf.Module()
    module.w = w
    module.__class__ = type(
        "Drawing", (tf.Module,), {"__call__": tf.function(lambda self, x: tf.nn.dropout(x @ w, 0.5))}
    )
    module.__call__.get_concrete_function(tf.TensorSpec([None, 3]))
    tf.saved_model.save(module, str(tmp_path / "saved"))

    with pytest.raises(onward.OnwardError, match="inference draws random numbers"):
        run(tmp_path / "saved", "-o", tmp_path / "out.onnx")

    assert not (tmp_path / "out.onnx").exists()


def test_the_prototype_of_2019_trains_on_both(tmp_path):
    script = str(ROOT / "examples" / "tensorflow_prototype_2019.py")

    done = subprocess.run(
        [sys.executable, script, "--output", str(tmp_path / "linear.train.onnx")], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    found = re.search(r"between ONNX Runtime and TensorFlow: (\S+)", done.stdout)
    again = re.search(r"from TensorFlow to a file: .*; largest difference (\S+)", done.stdout)
    assert found is not None, done.stdout
    assert again is not None, done.stdout
    assert max(float(found.group(1)), float(again.group(1))) < 1e-5
    assert (tmp_path / "linear.train.onnx").exists()
