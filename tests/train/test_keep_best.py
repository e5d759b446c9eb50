"""`keep_best`: the checkpoint of the best epoch stays on disk, and is a model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.errors import ArgumentError
from onward.train import Callback, EarlyStopping, Trainer
from onward.train.checkpoint import CheckpointDirectory
from train.test_backends import Break, model, samples

QUIET = {"progress": "none"}


class Remember(Callback):
    """Keeps the parameters after each epoch."""

    def __init__(self):
        self.after = []

    def on_epoch_end(self, run, logs):
        self.after.append(run.trainer.parameters)


def fit(trainer, directory, *, callbacks=(), epochs=6, **options):
    # A rate that is too large makes the validation loss go up and down.
    return trainer.fit(
        *samples(120), epochs=epochs, batch_size=16, validation_data=samples(80, 1), learning_rate=0.3,
        checkpoint=directory, keep=1, callbacks=callbacks, **options, **QUIET,
    )  # fmt: skip


def test_the_best_epoch_is_a_model_of_its_own(tmp_path):
    remember, trainer = Remember(), Trainer(model())

    history = fit(trainer, tmp_path / "run", callbacks=[remember], keep_best=True)

    best = int(np.argmin(history["val_loss"]))
    assert best < 5, "the test needs a run whose last epoch is not the best"
    loaded = onward.load(tmp_path / "run" / "best")
    for name, value in remember.after[best].items():
        np.testing.assert_array_equal(loaded.parameters[name].const_value.numpy(), value)
    assert Trainer.resume(tmp_path / "run").steps == trainer.steps


def test_a_column_says_what_is_best(tmp_path):
    history = fit(Trainer(model()), tmp_path / "run", metrics=["accuracy"], keep_best="val_accuracy")

    best = int(np.argmax(history["val_accuracy"]))
    assert CheckpointDirectory(tmp_path / "run" / "best").load().step == 8 * (best + 1)


def test_a_resumed_run_keeps_the_same_best(tmp_path):
    fit(Trainer(model()), tmp_path / "whole", keep_best=True)
    with pytest.raises(KeyboardInterrupt):
        fit(Trainer(model()), tmp_path / "run", callbacks=[Break(29)], keep_best=True)

    fit(Trainer.resume(tmp_path / "run"), tmp_path / "run")  # a checkpoint remembers `keep_best`

    whole, resumed = (CheckpointDirectory(tmp_path / name / "best").load() for name in ("whole", "run"))
    assert whole.step == resumed.step
    for name, value in whole.state.items():
        np.testing.assert_array_equal(resumed.state[name], value)


def test_the_best_can_be_gone_on_with(tmp_path):
    fit(Trainer(model()), tmp_path / "run", keep_best=True)
    best = CheckpointDirectory(tmp_path / "run" / "best").load()

    trainer = Trainer(tmp_path / "run" / "best")

    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value, best.state[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_best": True, "checkpoint": None}, "keep_best needs a checkpoint directory"),
        ({"keep_best": 3}, "keep_best is 3"),
        ({"keep_best": "val_acuracy", "metrics": ["accuracy"]}, "no such column to monitor `val_acuracy`"),
    ],
)
def test_mistakes_are_found_before_the_first_step(tmp_path, options, message):
    trainer = Trainer(model())

    with pytest.raises(ArgumentError, match=message):
        trainer.fit(*samples(), **{"checkpoint": tmp_path / "run", **options}, **QUIET)
    assert trainer.steps == 0


@pytest.mark.parametrize("monitor", ["acuracy", "val_loss", "val_accuracy"])
def test_a_column_that_will_not_be_there_is_refused_before_the_first_step(monitor):
    trainer = Trainer(model())

    with pytest.raises(ArgumentError, match=f"no such column to monitor `{monitor}`"):
        trainer.fit(*samples(), metrics=["accuracy"], callbacks=[EarlyStopping(monitor)], **QUIET)
    assert trainer.steps == 0


def test_the_option(tmp_path):
    x, y = samples(120)
    onward.save(model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=x, labels=y)
    common = ["train", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-q", "--keep-best"]

    refused = CliRunner().invoke(build_app(), common)
    result = CliRunner().invoke(build_app(), [*common, "--checkpoint", str(tmp_path / "run")])

    assert "--keep-best needs a checkpoint directory" in str(refused.exception)
    assert result.exit_code == 0, result.output + repr(result.exception)
    stripped = CliRunner().invoke(
        build_app(), ["strip", str(tmp_path / "run" / "best"), "-o", str(tmp_path / "best.onnx")]
    )
    assert stripped.exit_code == 0
    assert not onnx.load(tmp_path / "best.onnx").training_info
