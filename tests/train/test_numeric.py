"""NaN and Inf never stay: the state is the one before the bad update, and the bad tensor is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from onward.errors import NumericError
from onward.train import Trainer
from onward.train.checkpoint import CheckpointDirectory, CheckpointWarning
from train.fake import linear_data, linear_program
from train.test_fit import digest, make_trainer


def poisoned(batches, samples=160):
    """Return data in file order with NaN in some batches of 8."""
    x, t = linear_data(samples)
    for batch in batches:
        x[batch * 8 + 3, 1] = np.nan
    return x, t


def without(batches, samples=160):
    x, t = linear_data(samples)
    keep = [i for i in range(samples) if i // 8 not in batches]
    return x[keep], t[keep]


PLAIN = {"batch_size": 8, "shuffle": False, "progress": "none"}


@pytest.mark.parametrize("bad", [0, 1, 15, 16, 17, 19])
def test_stop_keeps_the_state_before_the_bad_batch(bad):
    trainer, expected = make_trainer(), make_trainer()
    x, t = linear_data(160)
    if bad:
        expected.fit(x[: bad * 8], t[: bad * 8], **PLAIN)

    with pytest.raises(NumericError) as caught:
        trainer.fit(*poisoned([bad]), **PLAIN)

    assert digest(trainer) == digest(expected)
    assert caught.value.diagnostics[0].message == f"NaN in `x` at step {bad + 1}; the update was not kept"


def test_skip_gives_the_bytes_of_a_run_without_the_bad_batches():
    trainer, expected = make_trainer(), make_trainer()

    trainer.fit(*poisoned([2, 3, 11]), on_nan="skip", **PLAIN)
    expected.fit(*without([2, 3, 11]), **PLAIN)

    assert digest(trainer) == digest(expected)


def test_five_bad_batches_in_a_row_are_skipped():
    trainer = make_trainer()

    trainer.fit(*poisoned(range(3, 8)), on_nan="skip", **PLAIN)

    assert np.isfinite(trainer.state["w"]).all()


def test_six_bad_batches_in_a_row_stop_the_run():
    trainer = make_trainer()

    with pytest.raises(NumericError, match="6 bad batches one after another, the last at step 9"):
        trainer.fit(*poisoned(range(3, 9)), on_nan="skip", **PLAIN)


def test_a_nan_in_the_update_behind_a_finite_loss_is_found_and_undone():
    trainer, expected = make_trainer(poison=4), make_trainer()
    x, t = linear_data(160)
    expected.fit(x[:32], t[:32], **PLAIN)

    with pytest.raises(NumericError) as caught:
        trainer.fit(x, t, **PLAIN)

    assert digest(trainer) == digest(expected)
    problem = caught.value.diagnostics[0]
    assert "at step 5" in problem.message
    assert "the update would have spoiled 2 tensors, first `w`" in problem.found


def test_an_overflow_names_the_first_inf_in_the_graph():
    trainer = make_trainer()
    x, t = linear_data(16)
    x[9, 0] = 3e38
    trainer.set_state({"w": np.full((3, 1), 100.0, np.float32)})

    with pytest.raises(NumericError) as caught:
        trainer.fit(x, t, **PLAIN)

    problem = caught.value.diagnostics[0]
    assert problem.message == "Inf in `xw` at step 2; the update was not kept"
    assert problem.place == "node `/linear/MatMul` (MatMul)"


def test_step_alone_is_guarded_too():
    trainer = make_trainer()
    x, t = linear_data(8)
    trainer.step({"x": x, "t": t})
    before = digest(trainer)
    x[0, 0] = np.inf

    with pytest.raises(NumericError, match="Inf in `x` at step 2"):
        trainer.step({"x": x, "t": t})

    assert digest(trainer) == before


def test_a_caller_may_reuse_its_batch_array():
    trainer, expected = make_trainer(), make_trainer()
    x, t = linear_data(24)
    buffer = np.empty((8, 3), np.float32)
    for i in range(2):
        buffer[:] = x[i * 8 : i * 8 + 8]
        trainer.step({"x": buffer, "t": t[i * 8 : i * 8 + 8]})
        expected.step({"x": x[i * 8 : i * 8 + 8], "t": t[i * 8 : i * 8 + 8]})
    buffer[:] = np.nan

    with pytest.raises(NumericError):
        trainer.step({"x": buffer, "t": t[16:]})

    assert digest(trainer) == digest(expected)


def test_a_state_that_is_bad_at_the_start_is_refused():
    trainer = make_trainer()
    trainer.set_state({"w": np.array([[1.0], [np.nan], [0.0]], np.float32)})

    with pytest.raises(NumericError, match="`w` holds 1 NaN of 3 numbers before the first step"):
        trainer.fit(*linear_data(), progress="none")


def test_infinity_that_is_meant_is_left_alone():
    program = linear_program()
    program = dataclasses.replace(program, state={**program.state, "best": np.array(np.inf, np.float32)})
    trainer = Trainer(program, backend="fake")

    trainer.fit(*linear_data(), progress="none")

    assert np.isinf(trainer.state["best"])


def test_a_checkpoint_with_nan_is_never_written(tmp_path):
    trainer = make_trainer(poison=4)

    with pytest.raises(NumericError):
        trainer.fit(*linear_data(160), checkpoint=tmp_path, checkpoint_every=2, **PLAIN)

    checkpoint = CheckpointDirectory(tmp_path).load()
    assert checkpoint.step == 4
    assert all(np.isfinite(a).all() for a in checkpoint.tensors.values())


def test_off_looks_at_nothing_but_a_bad_checkpoint_is_not_silent(tmp_path):
    trainer = make_trainer(poison=4)

    with pytest.warns(CheckpointWarning, match="holds NaN or Inf, first in `w`"):
        trainer.fit(*linear_data(160), on_nan="off", checkpoint=tmp_path, **PLAIN)

    assert np.isnan(trainer.state["w"]).all()


def test_skipping_survives_a_resume(tmp_path):
    whole, broken = make_trainer(), make_trainer()
    data = poisoned([2, 3, 4, 7, 8])
    whole.fit(*data, on_nan="skip", **PLAIN)
    x, t = data
    calls = {"n": 0}

    class Stop(Exception):
        pass

    from onward.train import FunctionCallback

    def stop(run, logs):
        calls["n"] += 1
        if logs["step"] == 7:
            raise Stop

    with pytest.raises(Stop):
        broken.fit(
            x,
            t,
            on_nan="skip",
            checkpoint=tmp_path,
            checkpoint_every=1,
            callbacks=[FunctionCallback(on_step_end=stop)],
            **PLAIN,
        )

    resumed = Trainer.resume(tmp_path)
    resumed.fit(x, t, progress="none", checkpoint_every=1)

    assert digest(resumed) == digest(whole)
