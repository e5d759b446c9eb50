"""A scaled loss in whole runs: resuming, the history, the guard, the command line."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import onward
from models import batch, perceptron
from onward.cli import build_app
from onward.errors import NumericError

GROWING = onward.LossScale(2.0**120, growth_factor=16.0, growth_interval=3)  # overflows every few steps


def model(**options: Any) -> onward.TrainingModel:
    return onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2), **options)


def data(rows: int = 160) -> dict[str, np.ndarray]:
    """Return samples with gradients above 1."""
    feeds = batch(rows)
    return {**feeds, "x": feeds["x"] * np.float32(1000)}


def digest(trainer: onward.Trainer) -> str:
    state = trainer.state
    return hashlib.sha256(b"".join(n.encode() + state[n].tobytes() for n in sorted(state))).hexdigest()


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_a_resumed_run_ends_with_the_bytes_of_one_long_run(tmp_path: Path, backend: str) -> None:
    options = {"batch_size": 16, "progress": "none"}
    whole = onward.Trainer(model(), backend, loss_scale=GROWING)
    whole.fit(data(), epochs=4, **options)

    first = onward.Trainer(model(), backend, loss_scale=GROWING)
    first.fit(data(), epochs=2, checkpoint=tmp_path, **options)
    second = onward.Trainer.resume(tmp_path)
    second.fit(data(), epochs=4)

    assert digest(second) == digest(whole)
    assert int(whole.state["loss_scale/skipped"]) > 3


def test_the_history_says_how_the_scale_went() -> None:
    trainer = onward.Trainer(model(), loss_scale=GROWING)

    history = trainer.fit(data(), epochs=2, batch_size=16, progress="none")

    last = history.epochs[-1]
    assert last["loss_scale"] == float(trainer.state["loss_scale"])
    assert last["skipped_updates"] == int(trainer.state["loss_scale/skipped"]) > 0
    assert np.isfinite(last["loss"])


def test_a_finite_loss_with_a_skipped_update_is_no_error() -> None:
    trainer = onward.Trainer(model(), loss_scale=onward.LossScale(3e38))
    before = trainer.parameters

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            trainer.step(data(16))

    assert all(np.array_equal(before[n], value) for n, value in trainer.parameters.items())
    assert int(trainer.state["loss_scale/skipped"]) == 3


def root_model() -> onward.TrainingModel:
    """Return a model whose loss is finite and whose gradient is not: a square root at 0."""
    return onward.make_trainable(
        perceptron(),
        loss=lambda op, outputs, labels: op.ReduceMean(op.Sqrt(op.Relu(op.Mul(outputs, 0.0))), keepdims=0),
        label=None,
        optimizer="sgd",
    )


def test_a_scale_that_falls_without_end_warns_and_then_stops() -> None:
    trainer = onward.Trainer(root_model(), loss_scale=onward.LossScale(4.0))

    def train() -> None:
        for _ in range(600):  # the guard looks at the state every 16 to 256 steps
            trainer.step({"x": batch()["x"]})

    with pytest.warns(UserWarning, match="fell to"), pytest.raises(NumericError) as error:
        train()

    assert error.value.diagnostics[0].code == "N103"
    assert "no loss scale gives finite gradients: that of entry `train`" in str(error.value)
    assert "train without loss_scale=" in str(error.value)


def test_a_loss_that_is_not_finite_is_still_an_error() -> None:
    trainer = onward.Trainer(model(), loss_scale="dynamic")

    with pytest.raises(NumericError, match="NaN in `loss`|NaN|Inf"):
        trainer.step({**batch(), "x": np.full((16, 4), np.nan, np.float32)})


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(build_app(), [str(a) for a in arguments])


def test_command_line(tmp_path: Path) -> None:
    net, run, out = tmp_path / "net.onnx", tmp_path / "run", tmp_path / "out.onnx"
    onward.save(model(), net)
    np.savez(tmp_path / "data.npz", **data())
    options = ["--data", tmp_path / "data.npz", "--loss-scale", "dynamic", "--checkpoint", run, "--resume", "-q"]

    for epochs in (1, 2):
        done = call("train", net, *options, "--epochs", epochs, "-o", out)
        assert done.exit_code == 0, done.output

    assert "dynamic from 65536" in call("show", out).output
    assert int(onward.Trainer(out).state["loss_scale/good_steps"]) == 10
    wrong = call("compile", net, "-o", tmp_path / "program", "--loss-scale", "x")
    assert "loss_scale is 'x'" in str(wrong.exception)
    made = call("make-trainable", net, "--entry", "b", "--loss", "mse", "--loss-name", "b", "--label", "t",
                "--loss-scale", "1024", "-o", out)  # fmt: skip
    assert made.exit_code == 0, made.output
    assert "× 1024, the same in every step" in call("show", out).output


def test_a_program_keeps_the_scale(tmp_path: Path) -> None:
    program = onward.compile(model(), loss_scale="dynamic")

    program.save(tmp_path / "program")
    read = onward.Program.load(tmp_path / "program")

    assert [e.loss_scale for e in read.entries.values()] == ["loss_scale"]
    trainer = onward.Trainer(read)
    trainer.step(batch())
    assert int(trainer.state["loss_scale/good_steps"]) == 1
