"""Several training entries in one file: each asks for its own targets only, in Python and from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

import onward
from onward.errors import ArgumentError, DataError
from onward.train import Preparation, ReduceOnPlateau, Trainer
from train.test_backends import digest, network, samples
from train.test_cli import fails, ok

QUIET = {"progress": "none"}
X, LABELS = samples(48)
GOAL = np.eye(4, dtype=np.float32)[LABELS]


def two_sides():
    """Return a model whose entry `train` reads class numbers and whose entry `second` reads rows of numbers."""
    model = onward.make_trainable(
        network(), loss="cross_entropy", optimizer=onward.SGD(0.1), train=["w2", "b2"], loss_name="first_loss"
    )
    return onward.make_trainable(
        model, loss="mse", optimizer=onward.SGD(0.4), train=["w1", "b1"], entry="second", loss_name="second_loss",
        label="goal",
    )  # fmt: skip


def mean_square(trainer):
    return float(np.mean(np.square(trainer.predict(X) - GOAL)))


def test_step_asks_for_the_targets_of_its_entry():
    trainer = Trainer(two_sides())

    outputs = trainer.step({"x": X, "goal": GOAL}, entry="second")

    assert outputs["loss"] == outputs["second_loss"]
    with pytest.raises(DataError, match="the step lacks `labels`"):
        trainer.step({"x": X, "goal": GOAL})
    with pytest.raises(DataError, match="the step has no input `labels`"):
        trainer.step({"x": X, "goal": GOAL, "labels": LABELS}, entry="second")


def test_fit_of_one_entry_needs_its_targets_only_and_reports_its_loss():
    trainer = Trainer(two_sides())
    before = mean_square(trainer)

    history = trainer.fit(X, GOAL, entry="second", epochs=3, validation_data=(X, GOAL), metrics=["mae"], **QUIET)

    assert history["val_loss"][-1] == pytest.approx(mean_square(trainer), rel=1e-5)
    assert history["val_loss"][-1] < before
    assert history["loss"][0] > history["loss"][-1]


def test_evaluate_gives_the_loss_of_each_entry():
    trainer = Trainer(two_sides())

    first = trainer.evaluate(X, LABELS)["loss"]
    second = trainer.evaluate({"x": X, "goal": GOAL}, entry="second")["loss"]

    assert second == pytest.approx(mean_square(trainer), rel=1e-5)
    logits = trainer.predict(X).astype(np.float64)
    chosen = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(48), LABELS]
    assert first == pytest.approx(chosen.mean(), rel=1e-5)


def test_entries_in_turn_need_all_targets_and_train_all_weights():
    trainer = Trainer(two_sides())
    before = trainer.parameters

    history = trainer.fit({"x": X, "labels": LABELS, "goal": GOAL}, epochs=2, **QUIET)

    assert all(not np.array_equal(before[n], a) for n, a in trainer.parameters.items())
    assert history["loss"] == history["first_loss"]
    assert len(history["second_loss"]) == 2


def test_entries_called_by_turns_give_the_weights_of_the_loop():
    whole, turns = Trainer(two_sides()), Trainer(two_sides())
    whole.fit({"x": X, "labels": LABELS, "goal": GOAL}, epochs=1, batch_size=16, shuffle=False, **QUIET)

    for start in range(0, 48, 16):
        part = slice(start, start + 16)
        turns.step({"x": X[part], "labels": LABELS[part]}, entry="train")
        turns.step({"x": X[part], "goal": GOAL[part]}, entry="second")

    assert digest(whole) == digest(turns)


def test_a_learning_rate_reaches_every_entry():
    trainer = Trainer(two_sides())
    before = trainer.parameters

    trainer.fit({"x": X, "labels": LABELS, "goal": GOAL}, learning_rate=0.0, **QUIET)

    assert trainer.learning_rate_names == ("learning_rate", "learning_rate_2")
    assert all(np.array_equal(before[n], a) for n, a in trainer.parameters.items())


def test_a_plateau_reduces_each_rate_by_the_same_factor():
    trainer = Trainer(two_sides())
    fed = []
    step = trainer.session.step
    trainer.session.step = lambda feeds, *, entry=None: (fed.append(feeds), step(feeds, entry=entry))[1]

    plateau = ReduceOnPlateau("loss", factor=0.5, patience=1, min_delta=100.0)
    trainer.fit({"x": X, "labels": LABELS, "goal": GOAL}, batch_size=48, epochs=3, callbacks=[plateau], **QUIET)

    assert float(fed[-1]["learning_rate"]) == pytest.approx(0.05)
    assert float(fed[-1]["learning_rate_2"]) == pytest.approx(0.2)


def test_a_saved_program_keeps_the_evaluation_of_every_entry(tmp_path):
    program = onward.compile(two_sides())
    program.save(tmp_path / "program")

    loaded = Trainer(tmp_path / "program")

    assert loaded.evaluate({"x": X, "goal": GOAL}, entry="second")["loss"] == pytest.approx(mean_square(loaded))
    manifest = json.loads((tmp_path / "program" / "manifest.json").read_text())
    roles = {o["name"]: o["role"] for graph in manifest["graphs"].values() for o in graph["outputs"]}
    assert (roles["first_loss"], roles["second_loss"]) == ("loss", "loss")


def test_resuming_a_run_of_one_entry_gives_the_same_bytes(tmp_path):
    whole, part = Trainer(two_sides()), Trainer(two_sides())
    whole.fit(X, GOAL, entry="second", epochs=3, **QUIET)
    part.fit(X, GOAL, entry="second", epochs=1, checkpoint=tmp_path, **QUIET)

    resumed = Trainer.resume(tmp_path)
    resumed.fit(X, GOAL, epochs=3, **QUIET)

    assert resumed.steps == whole.steps
    assert digest(resumed) == digest(whole)


def test_an_unknown_entry_is_named():
    with pytest.raises(ArgumentError, match=r"no such training entry `secnd`[\s\S]*did you mean `second`"):
        Trainer(two_sides()).evaluate(X, LABELS, entry="secnd")


@pytest.fixture
def work(tmp_path):
    onward.save(two_sides(), tmp_path / "m.onnx")
    np.savez(tmp_path / "goal.npz", x=X, goal=GOAL)
    np.savez(tmp_path / "labels.npz", x=X, labels=LABELS)
    np.savez(tmp_path / "both.npz", x=X, labels=LABELS, goal=GOAL)
    rows = ["a,b,c,d,e,f,g,h,p,q,r,s"] + [",".join(map(str, [*x, *t])) for x, t in zip(X, GOAL, strict=True)]
    (tmp_path / "goal.csv").write_text("\n".join(rows))
    return tmp_path


def test_train_one_entry_from_the_command_line(work):
    ok(
        "train", work / "m.onnx", "-d", work / "goal.npz", "--entry", "second", "--validation", work / "goal.npz",
        "-o", work / "t.onnx", "--log", work / "log.jsonl", "--checkpoint", work / "run", "-q",
    )  # fmt: skip
    ok(
        "train", work / "m.onnx", "-d", work / "goal.npz", "--epochs", 2, "--validation", work / "goal.npz",
        "--checkpoint", work / "run", "--resume", "-q",
    )  # fmt: skip

    record = [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]
    epoch = next(r for r in record if "val_loss" in r)
    found = json.loads(ok("evaluate", work / "t.onnx", "-d", work / "goal.npz", "--entry", "second", "--json").stdout)
    assert found["loss"] == pytest.approx(epoch["val_loss"], rel=1e-5)


def test_train_one_entry_on_a_table(work):
    ok(
        "train", work / "m.onnx", "-d", work / "goal.csv", "--entry", "second", "-q",
        "--column", "x=a,b,c,d,e,f,g,h", "-o", work / "t.onnx",
    )  # fmt: skip

    assert Trainer(work / "t.onnx").preparation == Preparation(table={"x": list("abcdefgh"), "goal": list("pqrs")})


def test_train_all_entries_from_the_command_line(work):
    ok("train", work / "m.onnx", "-d", work / "both.npz", "-q")

    assert "no column `goal`" in fails("train", work / "m.onnx", "-d", work / "labels.npz", "-q")


def test_evaluate_asks_for_the_targets_of_the_first_entry(work):
    assert "loss" in json.loads(ok("evaluate", work / "m.onnx", "-d", work / "labels.npz", "--json").stdout)
