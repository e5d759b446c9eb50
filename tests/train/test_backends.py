"""The trainer on real models and real backends."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import ArgumentError, DataError, NumericError
from onward.train import Callback, Preparation, Trainer

QUIET = {"progress": "none"}


def network(dropout: float = 0.0, classes: int = 4) -> onnx.ModelProto:
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array((rng.normal(size=shape) * 0.3).astype(np.float32), name)

    middle = helper.make_node("Dropout", ["r", "ratio"], ["d"]) if dropout else helper.make_node("Relu", ["r"], ["d"])
    weights = [weight("w1", 8, 32), weight("b1", 32), weight("w2", 32, classes), weight("b2", classes)]
    if dropout:
        weights.append(numpy_helper.from_array(np.float32(dropout), "ratio"))
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], name="fc1"),
            helper.make_node("Relu", ["a"], ["r"], name="relu"),
            middle,
            helper.make_node("Gemm", ["d", "w2", "b2"], ["logits"], name="fc2"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def model(dropout: float = 0.0, optimizer=None):
    return onward.make_trainable(network(dropout), loss="cross_entropy", optimizer=optimizer or onward.Adam(1e-2))


def samples(count: int = 150, seed: int = 0):
    rng = np.random.Generator(np.random.Philox(key=seed))
    x = rng.normal(size=(count, 8)).astype(np.float32)
    return x, np.argmax(x[:, :4], axis=1)


def digest(trainer):
    state = trainer.state
    return hashlib.sha256(b"".join(n.encode() + state[n].tobytes() for n in sorted(state))).hexdigest()


class Break(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, run, logs):
        if logs["step"] == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("backend", ["onnxruntime", "reference"])
def test_a_classifier_learns(backend):
    trainer = Trainer(model(), backend=backend)

    history = trainer.fit(
        *samples(400), epochs=6, batch_size=32, validation_data=samples(100, 1), metrics=["accuracy"], **QUIET
    )

    assert history["val_accuracy"][-1] > 0.85
    assert history["val_loss"][-1] < history["val_loss"][0]


def test_the_same_losses_on_both_backends():
    histories = [
        Trainer(model(dropout=0.3), backend=backend).fit(*samples(), epochs=2, batch_size=32, **QUIET)
        for backend in ("onnxruntime", "reference")
    ]

    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)


@pytest.mark.parametrize("optimizer", [onward.SGD(0.05), onward.Adam(1e-2)], ids=["sgd", "adam"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_resume_is_bit_exact(tmp_path, optimizer, dropout):
    arguments = {"epochs": 3, "batch_size": 32, "checkpoint_every": 2, **QUIET}
    whole = Trainer(model(dropout, optimizer))
    whole.fit(*samples(), **arguments)
    with pytest.raises(KeyboardInterrupt):
        Trainer(model(dropout, optimizer)).fit(*samples(), callbacks=[Break(8)], checkpoint=tmp_path, **arguments)

    resumed = Trainer.resume(tmp_path)
    assert resumed.steps == 6
    resumed.fit(*samples(), checkpoint_every=2, **QUIET)

    assert digest(resumed) == digest(whole)


def test_resume_from_a_compiled_program_is_bit_exact(tmp_path):
    onward.compile(model(0.3)).save(tmp_path / "program")
    arguments = {"epochs": 3, "batch_size": 32, "checkpoint_every": 1, **QUIET}
    whole = Trainer(tmp_path / "program")
    whole.fit(*samples(), **arguments)
    with pytest.raises(KeyboardInterrupt):
        Trainer(tmp_path / "program").fit(*samples(), callbacks=[Break(8)], checkpoint=tmp_path / "run", **arguments)

    resumed = Trainer.resume(tmp_path / "run")
    resumed.fit(*samples(), checkpoint_every=1, **QUIET)

    assert digest(resumed) == digest(whole)


def test_three_processes_give_the_same_bytes():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from train.test_backends import Trainer, digest, model, samples\n"
        "t = Trainer(model(0.3), threads=1)\n"
        "t.fit(*samples(), epochs=2, seed=3, progress='none')\n"
        "print(digest(t))"
    )
    tests = str(Path(__file__).resolve().parents[1])

    found = {
        subprocess.run([sys.executable, "-c", code, tests], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    }

    assert len(found) == 1


def test_the_inference_model_predicts_what_the_trainer_predicts():
    trainer = Trainer(model(0.3))
    x, y = samples()
    trainer.fit(x, y, epochs=2, **QUIET)

    proto = trainer.to_inference()

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], trainer.predict(x), rtol=1e-6, atol=1e-6)


def test_the_inference_model_can_hold_the_moving_average():
    trainer = Trainer(model(optimizer=onward.SGD(0.05, ema=0.9)))
    trainer.fit(*samples(), **QUIET)

    weights = {i.name: numpy_helper.to_array(i) for i in trainer.to_inference(average=True).graph.initializer}

    np.testing.assert_array_equal(weights["w1"], trainer.state["ema/w1"])
    assert not np.array_equal(weights["w1"], trainer.state["w1"])


def test_an_average_that_is_not_kept_is_an_error():
    with pytest.raises(ArgumentError, match="keeps no moving average"):
        Trainer(model()).to_inference(average=True)


def test_the_inference_model_of_a_program_predicts_the_same(tmp_path):
    trainer = Trainer(onward.compile(model()))
    x, y = samples()
    trainer.fit(x, y, **QUIET)

    session = onnxruntime.InferenceSession(
        trainer.to_inference().SerializeToString(), providers=["CPUExecutionProvider"]
    )

    assert [i.name for i in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], trainer.predict(x), rtol=1e-6, atol=1e-6)


def test_the_saved_training_model_goes_on_training(tmp_path):
    trainer = Trainer(model())
    x, y = samples()
    trainer.fit(x, y, epochs=2, preparation=Preparation(scale=0.5), **QUIET)

    onward.save(trainer.to_model(), tmp_path / "trained.onnx")
    again = Trainer(tmp_path / "trained.onnx")

    assert again.preparation.scale == 0.5
    np.testing.assert_array_equal(again.state["w1"], trainer.state["w1"])
    assert again.evaluate(x, y) == trainer.evaluate(x, y)
    again.fit(x, y, **QUIET)


def test_a_learning_rate_of_zero_changes_nothing():
    trainer = Trainer(model(optimizer=onward.SGD(0.05)))
    before = trainer.parameters

    trainer.fit(*samples(), learning_rate=0.0, **QUIET)

    for name, array in trainer.parameters.items():
        np.testing.assert_array_equal(array, before[name])


def test_an_onward_schedule_can_be_passed_and_is_remembered(tmp_path):
    from onward.schedules import Step

    trainer = Trainer(model())
    history = trainer.fit(
        *samples(64), batch_size=16, epochs=2, learning_rate=Step(0.1, every=4, gamma=0.5), checkpoint=tmp_path, **QUIET
    )

    assert history["learning_rate"] == pytest.approx([0.05, 0.025])
    with pytest.raises(ArgumentError, match="learning_rate differs"):
        Trainer.resume(tmp_path).fit(*samples(64), epochs=3, learning_rate=Step(0.2, every=4, gamma=0.5), **QUIET)


@pytest.mark.parametrize("backend", ["onnxruntime", "reference"])
def test_nan_in_the_data_is_named_and_undone(backend):
    trainer = Trainer(model(0.3), backend=backend)
    clean = Trainer(model(0.3), backend=backend)
    x, y = samples(96)
    clean.fit(x[:64], y[:64], batch_size=16, shuffle=False, **QUIET)
    x[70, 3] = np.nan

    with pytest.raises(NumericError, match="NaN in `x` at step 5"):
        trainer.fit(x, y, batch_size=16, shuffle=False, **QUIET)

    assert digest(trainer) == digest(clean)


def test_an_exploding_run_names_a_node_of_the_model():
    trainer = Trainer(model(optimizer=onward.SGD(0.05)))

    with pytest.raises(NumericError) as caught:
        trainer.fit(*samples(), epochs=50, learning_rate=1e20, **QUIET)

    assert "node `" in caught.value.diagnostics[0].place
    assert all(np.isfinite(a).all() for a in trainer.state.values())


def two_entries():
    """Return a model whose first entry trains the first layer and whose second trains the second, as GANs do."""
    from onward.model.serde import from_proto, to_proto

    first, second = (
        to_proto(onward.make_trainable(network(), loss="cross_entropy", optimizer=onward.SGD(0.05), train=names))
        for names in (["w1", "b1"], ["w2", "b2"])
    )
    first.training_info.extend(second.training_info)
    for info, name in zip(first.training_info, ("first", "second"), strict=True):
        info.algorithm.name = name
    return from_proto(first)


@pytest.mark.parametrize(
    ("entry", "changed"),
    [("first", ["w1", "b1"]), ("second", ["w2", "b2"]), (None, ["w1", "b1", "w2", "b2"])],
)
def test_one_entry_or_all_in_turn(entry, changed):
    trainer = Trainer(two_entries())
    before = trainer.parameters

    trainer.fit(*samples(), entry=entry, **QUIET)

    assert [n for n, a in trainer.parameters.items() if not np.array_equal(a, before[n])] == changed


def test_a_bad_batch_undoes_all_entries():
    trainer = Trainer(two_entries())
    before = digest(trainer)
    x, y = samples(16)
    x[3, 3] = np.inf

    with pytest.raises(NumericError, match="Inf in `x` at step 1"):
        trainer.step({"x": x, "labels": y})

    assert digest(trainer) == before


def test_mixed_batch_sizes_from_an_iterable():
    trainer = Trainer(model())
    x, y = samples(60)
    batches = [{"x": x[a:b], "labels": y[a:b]} for a, b in ((0, 7), (7, 40), (40, 41), (41, 60))]

    history = trainer.fit(batches, epochs=2, **QUIET)

    assert trainer.steps == 8
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.parametrize("backend", ["onnxruntime", "reference"])
def test_a_negative_label_is_no_class(backend):
    x, y = samples(20)
    trainer = Trainer(model(), backend)
    y[7] = -1
    before = digest(trainer)

    for use in (
        lambda: trainer.fit(x, y, **QUIET),
        lambda: trainer.evaluate(x, y),
        lambda: trainer.step({"x": x, "labels": y}),
    ):
        with pytest.raises(DataError, match="`labels` holds class -1"):
            use()

    assert digest(trainer) == before


def test_the_label_to_ignore_may_be_negative():
    x, y = samples(20)
    loss = onward.losses.CrossEntropy(ignore_index=-1)
    trainer = Trainer(onward.make_trainable(network(), loss=loss, optimizer=onward.SGD(0.1)))
    some = np.arange(20) % 3 == 0

    partly = trainer.evaluate(x, np.where(some, y, -1))

    assert partly["loss"] == pytest.approx(trainer.evaluate(x[some], y[some])["loss"], rel=1e-6)


def test_labels_to_ignore_do_not_count_in_the_mean_loss_of_batches():
    x, y = samples(40)
    loss = onward.losses.CrossEntropy(ignore_index=-1)
    trainer = Trainer(onward.make_trainable(network(), loss=loss, optimizer=onward.SGD(0.1)))
    y[5:25] = -1

    whole, parts = (trainer.evaluate(x, y, batch_size=size)["loss"] for size in (40, 7))  # one batch is all ignored

    assert parts == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("use", ["step", "fit"])
def test_a_step_with_fewer_labels_than_samples_is_refused(use):
    x, y = samples(20)
    trainer = Trainer(model())
    before = digest(trainer)
    feeds = {"x": x, "labels": y[:5]}

    with pytest.raises(DataError, match="different numbers of samples"):
        trainer.step(feeds) if use == "step" else trainer.fit([feeds], **QUIET)

    assert digest(trainer) == before


@pytest.mark.parametrize("wrong", [{"learning_rate": "fast"}, {"validation_data": True}])
def test_what_is_no_number_is_refused(wrong):
    x, y = samples(20)

    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Trainer(model()).fit(x, y, **wrong, **QUIET)


@pytest.mark.parametrize("backend", ["onnxruntime", "reference"])
def test_a_label_beyond_the_classes_is_explained(backend):
    trainer = Trainer(model(), backend=backend)
    x, y = samples(40)
    before = digest(trainer)

    with pytest.raises(DataError, match="`labels` holds class 9, and output `logits` has 4 classes"):
        trainer.step({"x": x, "labels": np.where(np.arange(40) == 7, 9, y)})

    assert digest(trainer) == before
    trainer.step({"x": x, "labels": y})


def test_uint8_labels_and_lists_are_taken():
    trainer = Trainer(model())
    x, y = samples(40)

    trainer.fit(x.tolist(), y.astype(np.uint8), **QUIET)

    assert trainer.steps == 2
