"""The state as one file: it comes back, and what is damaged or of another model is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onward
from models import batch, dropout_network, perceptron
from onward.errors import CheckpointError
from train.test_cli import fails, ok


def trainer(model: object = None) -> onward.Trainer:
    made = onward.make_trainable(model or dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    return onward.Trainer(made, threads=1)


def trained(steps: int) -> onward.Trainer:
    made = trainer()
    for i in range(steps):
        made.step(batch(seed=i))
    return made


def refused(made: onward.Trainer, path: Path) -> CheckpointError:
    """Return the error of loading `path`, which must leave the state as it was."""
    before, steps = made.state, made.steps
    with pytest.raises(CheckpointError) as caught:
        made.load_state(path)
    assert made.steps == steps
    assert all((before[n] == v).all() for n, v in made.state.items())
    return caught.value


def test_a_loaded_state_trains_on_as_the_saved_one(tmp_path: Path) -> None:
    first, second = trained(5), trainer()

    first.save_state(tmp_path / "state.safetensors")
    second.load_state(tmp_path / "state.safetensors")

    assert second.steps == 5
    assert first.step(batch(seed=5))["loss"] == second.step(batch(seed=5))["loss"]
    assert second.steps == 6


def test_a_step_of_a_run_and_the_state_of_a_program_can_be_loaded(tmp_path: Path) -> None:
    first = trained(3)
    path = first.save_checkpoint(tmp_path / "run")
    first.program.save(tmp_path / "program")
    second = trainer()

    second.load_state(path)
    assert second.steps == 3
    np.testing.assert_array_equal(second.state["W0"], first.state["W0"])

    second.load_state(tmp_path / "program" / "state.safetensors")
    assert second.steps == 0
    np.testing.assert_array_equal(second.state["W0"], trainer().state["W0"])


def test_a_state_of_another_model_is_refused_with_every_difference(tmp_path: Path) -> None:
    trainer(perceptron((4, 5, 3))).save_state(tmp_path / "other.safetensors")

    error = refused(trained(1), tmp_path / "other.safetensors")

    assert {d.code for d in error.diagnostics} == {"K108"}
    text = str(error)
    assert "`W0`" in text
    assert "float32[4, 5]" in text
    assert "float32[4, 8]" in text
    assert "`random/key`" in text  # which a network without dropout does not have


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    made = trained(1)
    made.save_state(path)
    content = path.read_bytes()
    for position in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(bytes(damaged))
        assert refused(made, path).code == "K102"
    path.write_bytes(content[:-1])
    assert refused(made, path).code == "K102"
    assert refused(made, tmp_path / "nothing").code == "K107"


def test_a_state_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"K101.*cannot be written"):
        trainer().save_state(tmp_path / "no folder" / "state.safetensors")


def test_the_command_starts_from_a_state(tmp_path: Path) -> None:
    made = trained(4)
    made.save_state(tmp_path / "state.safetensors")
    made.program.save(tmp_path / "program")
    np.savez(tmp_path / "data.npz", **batch(seed=9))
    common = [tmp_path / "program", "--data", tmp_path / "data.npz", "--epochs", 1, "--no-shuffle", "--quiet"]

    ok("train", *common, "--from-state", tmp_path / "state.safetensors", "--checkpoint", tmp_path / "run")

    resumed = onward.Trainer.resume(tmp_path / "run")
    assert resumed.steps == 5
    made.step(batch(seed=9))
    np.testing.assert_allclose(resumed.state["W0"], made.state["W0"], rtol=0, atol=1e-6)
    assert "--from-state and --initialize" in str(fails("train", *common, "--from-state", "x", "--initialize"))
