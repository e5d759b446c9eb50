"""The loop: order, resuming, callbacks, settings. On a small numpy backend."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from onward.errors import ArgumentError, DataError
from onward.train import BestSoFar, Callback, EarlyStopping, FunctionCallback, ReduceOnPlateau, Trainer
from onward.train.data.source import epoch_order
from train.fake import linear_data, linear_program


def make_trainer(**options):
    return Trainer(linear_program(), backend="fake", **options)


QUIET = {"progress": "none"}


def digest(trainer):
    return hashlib.sha256(b"".join(trainer.state[k].tobytes() for k in sorted(trainer.state))).hexdigest()


class StopAt(Callback):
    """Interrupts the process in the middle of a run, as a crash would."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, run, logs):
        if logs["step"] == self.step:
            raise KeyboardInterrupt


def test_fit_learns_a_line():
    trainer = make_trainer()

    history = trainer.fit(*linear_data(400), epochs=20, batch_size=32, progress="none")

    assert history["loss"][-1] < 1e-2
    np.testing.assert_allclose(trainer.parameters["w"].ravel(), [1, -2, 3], atol=0.02)


def test_last_partial_batch_is_trained_on():
    trainer = make_trainer()

    trainer.fit(*linear_data(70), epochs=1, batch_size=32, progress="none")

    assert trainer.steps == 3


def test_drop_last_leaves_the_partial_batch_out():
    trainer = make_trainer()

    trainer.fit(*linear_data(70), epochs=1, batch_size=32, drop_last=True, progress="none")

    assert trainer.steps == 2


def test_epoch_loss_weighs_uneven_batches_by_their_samples():
    trainer = make_trainer()
    seen = []
    watch = FunctionCallback(on_step_end=lambda run, logs: seen.append(logs["loss"]))

    history = trainer.fit(*linear_data(70), batch_size=32, callbacks=[watch], progress="none")

    expected = (seen[0] * 32 + seen[1] * 32 + seen[2] * 6) / 70
    assert history["loss"][0] == pytest.approx(expected, rel=1e-12)


def test_callbacks_of_the_first_step_know_how_long_it_took():
    """The speed that they show would else be that of no time at all."""
    seen = []
    watch = FunctionCallback(on_step_end=lambda run, logs: seen.append((run.position.samples, run.position.seconds)))

    make_trainer().fit(*linear_data(70), epochs=2, batch_size=32, callbacks=[watch], progress="none")

    assert [samples for samples, _ in seen] == [32, 64, 70] * 2
    assert all(0 < a < b < c for a, b, c in ([s for _, s in seen[:3]], [s for _, s in seen[3:]]))


def test_validation_loss_is_exact_over_uneven_batches():
    trainer = make_trainer()
    vx, vy = linear_data(70, seed=1)

    history = trainer.fit(*linear_data(50), validation_data=(vx, vy), batch_size=16, progress="none")

    whole = np.mean((trainer.predict(vx) - vy) ** 2)
    assert history["val_loss"][0] == pytest.approx(whole, rel=1e-5)


def test_order_depends_on_seed_and_epoch_only():
    orders = {(s, e): epoch_order(50, s, e).tolist() for s in range(3) for e in range(3)}

    assert len({tuple(o) for o in orders.values()}) == 9
    assert all(sorted(o) == list(range(50)) for o in orders.values())
    assert epoch_order(5, 0, 0).tolist() == [0, 2, 1, 4, 3]


def test_same_seed_gives_the_same_bytes():
    first, second, other = make_trainer(), make_trainer(), make_trainer()

    first.fit(*linear_data(), epochs=3, seed=5, progress="none")
    second.fit(*linear_data(), epochs=3, seed=5, progress="none")
    other.fit(*linear_data(), epochs=3, seed=6, progress="none")

    assert digest(first) == digest(second) != digest(other)


def test_columns_meant_for_a_file_do_not_hinder_arrays():
    from onward.train import Preparation

    trainer = make_trainer()
    x, t = linear_data()
    trainer.fit(
        {"features": x, "t": t}, preparation=Preparation(columns={"x": "features"}), validation_data=[x, t], **QUIET
    )

    assert trainer.evaluate(x, t)["loss"] == pytest.approx(trainer.history["val_loss"][0])


def test_prefetch_does_not_change_the_result():
    ahead, direct = make_trainer(), make_trainer()

    ahead.fit(*linear_data(), epochs=2, prefetch=4, progress="none")
    direct.fit(*linear_data(), epochs=2, prefetch=0, progress="none")

    assert digest(ahead) == digest(direct)


@pytest.mark.parametrize("stop", [1, 6, 7, 8, 13, 20])
def test_resume_gives_the_bytes_of_an_uninterrupted_run(tmp_path, stop):
    arguments = {"epochs": 3, "batch_size": 16, "seed": 3, "progress": "none", "checkpoint_every": 1}
    whole = make_trainer()
    plateau = ReduceOnPlateau("loss", patience=1, min_delta=10.0)
    whole_history = whole.fit(
        *linear_data(), validation_data=linear_data(30, 1), metrics=["mae"], callbacks=[plateau], **arguments
    )
    broken = make_trainer()
    with pytest.raises(KeyboardInterrupt):
        broken.fit(
            *linear_data(),
            validation_data=linear_data(30, 1),
            metrics=["mae"],
            callbacks=[ReduceOnPlateau("loss", patience=1, min_delta=10.0), StopAt(stop + 1)],
            checkpoint=tmp_path,
            **arguments,
        )

    resumed = Trainer.resume(tmp_path)
    history = resumed.fit(
        *linear_data(),
        validation_data=linear_data(30, 1),
        metrics=["mae"],
        callbacks=[ReduceOnPlateau("loss", patience=1, min_delta=10.0)],
        progress="none",
        checkpoint_every=1,
    )

    assert digest(resumed) == digest(whole)
    timing = {"seconds", "samples_per_second"}
    assert [{k: v for k, v in r.items() if k not in timing} for r in history.epochs] == [
        {k: v for k, v in r.items() if k not in timing} for r in whole_history.epochs
    ]
    assert history.step_losses == whole_history.step_losses


def test_bad_data_in_the_middle_loses_no_step(tmp_path):
    x, t = linear_data(64)
    batches = [(x[i : i + 8], t[i : i + 8]) for i in range(0, 64, 8)]
    whole, broken = make_trainer(), make_trainer()
    whole.fit(batches, progress="none")

    with pytest.raises(DataError):
        broken.fit([*batches[:5], (x[:8, :2], t[:8]), *batches[5:7]], checkpoint=tmp_path, progress="none")
    repaired = Trainer.resume(tmp_path)

    assert repaired.steps == 5
    repaired.fit(batches, progress="none")
    assert digest(repaired) == digest(whole)


def test_resuming_with_another_batch_size_is_refused(tmp_path):
    trainer = make_trainer()
    trainer.fit(*linear_data(), batch_size=16, seed=1, checkpoint=tmp_path, progress="none")

    with pytest.raises(ArgumentError) as caught:
        Trainer.resume(tmp_path).fit(*linear_data(), epochs=2, batch_size=8, seed=2)

    assert [d.message for d in caught.value.diagnostics] == [
        "batch_size differs from the run that is resumed",
        "seed differs from the run that is resumed",
    ]


def test_resuming_with_other_data_is_refused(tmp_path):
    trainer = make_trainer()
    trainer.fit(*linear_data(100), checkpoint=tmp_path, progress="none")

    with pytest.raises(ArgumentError, match="started with other data"):
        Trainer.resume(tmp_path).fit(*linear_data(90), epochs=2)


def test_a_finished_run_can_be_taken_further(tmp_path):
    whole, part = make_trainer(), make_trainer()
    whole.fit(*linear_data(), epochs=4, progress="none")
    part.fit(*linear_data(), epochs=2, checkpoint=tmp_path, progress="none")

    further = Trainer.resume(tmp_path)
    history = further.fit(*linear_data(), epochs=4, progress="none")

    assert len(history) == 4
    assert digest(further) == digest(whole)


def test_a_finished_run_returns_its_history_at_once(tmp_path):
    trainer = make_trainer()
    trainer.fit(*linear_data(), epochs=2, checkpoint=tmp_path, progress="none")

    resumed = Trainer.resume(tmp_path)
    history = resumed.fit(*linear_data(), progress="none")

    assert len(history) == 2
    assert resumed.session.calls == 0


def test_early_stopping_stops_and_restores_the_best_state():
    trainer = make_trainer()
    states = {}
    keep = FunctionCallback(on_epoch_end=lambda run, logs: states.setdefault(logs["epoch"], run.trainer.state))
    # A rate this high makes the loss grow from epoch to epoch.
    stop = EarlyStopping("loss", patience=2, restore_best=True)

    history = trainer.fit(*linear_data(), epochs=20, learning_rate=0.9, callbacks=[keep, stop], progress="none")

    assert len(history) < 20
    assert "has not improved for 2 epochs" in history.stopped
    best = int(np.argmin(history["loss"])) + 1
    np.testing.assert_array_equal(trainer.state["w"], states[best]["w"])


def test_best_so_far_follows_a_metric_that_grows():
    trainer = make_trainer()
    best = BestSoFar("val_r2")

    history = trainer.fit(
        *linear_data(), validation_data=linear_data(50, 1), metrics=["r2"], epochs=6, callbacks=[best], progress="none"
    )

    assert best.epoch == int(np.argmax(history["val_r2"])) + 1


def test_reduce_on_plateau_lowers_the_rate_that_is_fed():
    trainer = make_trainer()
    plateau = ReduceOnPlateau("loss", factor=0.5, patience=2, min_delta=100.0)

    history = trainer.fit(*linear_data(), epochs=6, callbacks=[plateau], progress="none")

    rates = np.array(history["learning_rate"]) / 0.05
    np.testing.assert_allclose(rates, [1, 1, 1, 0.5, 0.5, 0.25], rtol=1e-6)


def test_learning_rate_function_is_called_with_the_steps_done():
    trainer = make_trainer()
    seen = []

    trainer.fit(*linear_data(64), batch_size=16, learning_rate=lambda step: seen.append(step) or 0.0, progress="none")

    assert sorted(set(seen)) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(trainer.state["w"], 0)


def test_learning_rate_without_such_a_setting_is_an_error():
    import dataclasses

    program = dataclasses.replace(linear_program(), settings={})
    trainer = Trainer(program, backend="fake")

    with pytest.raises(ArgumentError, match="has none that can be fed"):
        trainer.fit(*linear_data(), learning_rate=0.1)


def test_step_names_everything_that_is_wrong():
    trainer = make_trainer()

    with pytest.raises(DataError) as caught:
        trainer.step({"x": np.zeros((4, 2), np.float32), "labels": np.zeros(4)})

    messages = [d.message for d in caught.value.diagnostics]
    assert messages == [
        "the step has no input `labels`",
        "the step lacks `t`",
        "column `x` does not have the shape of `x`",
    ]


def test_step_returns_the_loss_and_counts():
    trainer = make_trainer()
    x, t = linear_data(8)

    outputs = trainer.step({"x": x, "t": t})

    assert outputs["loss"] > 0
    assert trainer.steps == 1


def test_monitoring_an_unknown_column_lists_the_columns():
    trainer = make_trainer()

    with pytest.raises(ArgumentError, match=r"no such column to monitor `val_accuracy`"):
        trainer.fit(*linear_data(), callbacks=[EarlyStopping("val_accuracy")], progress="none")


def test_wrong_settings_are_reported_together():
    with pytest.raises(ArgumentError) as caught:
        make_trainer().fit(*linear_data(), epochs=0, batch_size=-1, seed=-2, entry="nope")

    assert len(caught.value.diagnostics) == 4


def test_an_entry_is_passed_on():
    trainer = make_trainer()
    seen = []
    whole = trainer.session.step
    trainer.session.step = lambda feeds, *, entry=None: (seen.append(entry), whole(feeds))[1]

    trainer.fit(*linear_data(16), batch_size=8, entry="train", progress="none")

    assert seen == ["train", "train"]


def test_validation_share_is_held_back():
    trainer = make_trainer()

    history = trainer.fit(*linear_data(100), batch_size=10, validation_data=0.2, progress="none")

    assert trainer.steps == 8
    assert history["val_loss"][0] > 0


def test_fixed_batch_size_pads_predictions_and_drops_the_last_batch():
    trainer = Trainer(linear_program(batch=8), backend="fake")
    x, t = linear_data(20)

    trainer.fit(x, t, progress="none")

    assert trainer.steps == 2
    assert trainer.predict(x).shape == (20, 1)
    np.testing.assert_allclose(trainer.predict(x), x @ trainer.state["w"] + trainer.state["b"], rtol=1e-6)


def test_fixed_batch_size_refuses_another_one():
    with pytest.raises(DataError, match="takes batches of exactly 8"):
        Trainer(linear_program(batch=8), backend="fake").fit(*linear_data(20), batch_size=4)


def test_a_trainer_does_not_keep_its_data_after_fit():
    import gc
    import weakref

    trainer = make_trainer()
    x, t = linear_data()
    alive = weakref.ref(x)

    trainer.fit(x, t, progress="none")
    del x
    gc.collect()

    assert alive() is None


def test_a_session_of_one_process_needs_to_say_nothing_about_several():
    session = make_trainer().session
    x, _ = linear_data()

    assert (session.processes, session.writer, session.sharded) == (1, True, False)
    assert session.whole_batch({"x": x}) == {"x": x}
