"""Metrics read the output that the loss reads, or that derives from it; what cannot be computed is refused at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.errors import ArgumentError, Diagnostic
from onward.surgery.notes import read_note
from onward.train import EarlyStopping, JsonLog, Report, Trainer
from onward.train.metrics import Accuracy

QUIET = {"progress": "none"}
RNG = np.random.default_rng(0)


def weight(*shape):
    return (RNG.normal(size=shape) * 0.5).astype(np.float32)


def build(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>' + text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    return proto


def samples(count: int = 120):
    x = np.random.default_rng(1).normal(size=(count, 5)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)


NORMALISED = {
    "W": weight(5, 8), "V": weight(8, 3), "s": np.ones(8, np.float32), "o": np.zeros(8, np.float32),
    "m": np.zeros(8, np.float32), "v": np.ones(8, np.float32), "ratio": np.float32(0.3),
}  # fmt: skip
BODY = "h = MatMul(x, W) n = BatchNormalization(h, s, o, m, v) r = Relu(n) d = Dropout(r, ratio) z = MatMul(d, V)"
PLAIN = "h = MatMul(x, W) r = Relu(h) z = MatMul(r, V)"
ENDINGS = {
    "logits": ("z", ""),
    "Softmax": ("p", "p = Softmax(z)"),
    "Softmax, Identity": ("p", "q = Softmax(z) p = Identity(q)"),
    "Sigmoid by hand": ("p", "I = Constant<value_float = 1.0>() g = Neg(z) e = Exp(g) t = Add(I, e) p = Div(I, t)"),
    "Softmax by hand": ("p", "e = Exp(z) axis = Constant<value_ints = [1]>() t = ReduceSum(e, axis) p = Div(e, t)"),
    "Softmax by hand, with a shape from the body": (  # as tf2onnx writes it
        "p",
        """e = Exp(z) axis = Constant<value_ints = [1]>() t = ReduceSum<keepdims = 0>(e, axis) rows = Shape<end = 1>(h)
        shape = Concat<axis = 0>(rows, axis) k = Reshape(t, shape) g = Expand(k, shape) p = Div(e, g)""",
    ),
}


def network(body: str, ending: str) -> onnx.ModelProto:
    output, nodes = ENDINGS[ending]
    text = f"m (float[N, 5] x) => (float[N, 3] {output}) {{ {body} {nodes} }}"
    used = NORMALISED if body is BODY else {k: NORMALISED[k] for k in "WV"}
    return build(text, **used)


def classifier(body: str, ending: str, **options):
    return onward.make_trainable(network(body, ending), loss="cross_entropy", output="z", **options)


def test_accuracy_behind_a_softmax_of_an_old_operator_set():
    """Its upgrade is Flatten, Softmax, and Reshape to the shape of what was flattened; the loss reads that."""
    text = f"m (float[N, 5] x) => (float[N, 3] p) {{ {PLAIN} p = Softmax(z) }}"
    proto = build(text, W=NORMALISED["W"], V=NORMALISED["V"])
    proto.opset_import[0].version = 11

    model = onward.make_trainable(proto, loss="cross_entropy", classes=2)
    history = Trainer(model).fit(*(a[:40] for a in (samples()[0], samples()[1] % 2)), metrics=["accuracy"], **QUIET)

    assert read_note(model)["logits"] == "z"
    assert history.last["accuracy"] > 0


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("body", "options"),
    [(PLAIN, {}), (BODY, {}), (BODY, {"train": "V"}), (BODY, {"batch_norm": "freeze"})],
    ids=["plain", "BatchNorm and Dropout", "a head on frozen BatchNorm", "BatchNorm frozen"],
)
def test_accuracy_is_that_of_the_training_mode_outputs(ending, body, options):
    x, y = samples()
    trainer, by_hand = (Trainer(classifier(body, ending, **options)) for _ in range(2))

    history = trainer.fit(x, y, batch_size=40, shuffle=False, metrics=["accuracy"], **QUIET)

    right = 0
    for first in (0, 40, 80):
        outputs = by_hand.step({"x": x[first : first + 40], "labels": y[first : first + 40]})
        scores = next(value for value in outputs.values() if np.shape(value) == (40, 3))
        right += int((scores.argmax(axis=1) == y[first : first + 40]).sum())
    assert history["accuracy"] == [pytest.approx(right / 120)]


def test_early_stopping_may_watch_it():
    x, y = samples()
    trainer = Trainer(classifier(BODY, "Softmax"))

    history = trainer.fit(
        x, y, epochs=3, metrics=["accuracy"], callbacks=[EarlyStopping(monitor="accuracy", patience=1)], **QUIET
    )

    assert all(0 <= a <= 1 for a in history["accuracy"])


def test_a_probability_is_read_as_one_in_training_and_in_validation():
    """For one number per sample, 0.5 decides of a probability and 0 of a logit."""
    text = "m (float[N, 5] x) => (float[N, 1] p) { z = MatMul(x, W) p = Sigmoid(z) }"
    model = onward.make_trainable(build(text, W=weight(5, 1)), loss="bce_with_logits", output="z", optimizer="sgd")
    x, _ = samples()
    y = (x[:, :1] > 0).astype(np.float32)
    trainer = Trainer(model)
    expected = float(((trainer.predict(x) > 0.5) == (y > 0.5)).mean())

    history = trainer.fit(
        x, y, batch_size=120, metrics=["accuracy"], validation_data=(x, y), learning_rate=0.0, **QUIET
    )

    assert history["accuracy"] == history["val_accuracy"] == [pytest.approx(expected)]


def of_scikit_learn() -> onnx.ModelProto:
    """A classifier in the form that skl2onnx writes: the name of the class first, then the probabilities."""
    text = (
        "m (float[N, 5] x) => (string[N] label, float[N, 3] probabilities) { "
        "z = MatMul(x, W) s = Softmax <axis = 1> (z) probabilities = Identity(s) "
        "best = ArgMax <axis = 1> (probabilities) name = ai.onnx.ml.ArrayFeatureExtractor(classes, best) "
        "label = Reshape(name, flat) }"
    )
    classes = np.array(["ant", "bee", "cat"], dtype=object)
    return build(text, W=weight(5, 3), classes=classes, flat=np.array([-1]))


@pytest.fixture
def files(tmp_path):
    model = onward.make_trainable(of_scikit_learn(), loss="cross_entropy", output="z", optimizer=onward.Adam(0.05))
    onward.save(model, tmp_path / "m.onnx")
    x, y = samples()
    np.savez(tmp_path / "d.npz", x=x, labels=y)
    names = np.array(["ant", "bee", "cat"])[y]
    rows = ["a,b,c,d,e,insect", *(",".join(map(str, [*row, name])) for row, name in zip(x, names, strict=True))]
    (tmp_path / "d.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def call(*arguments):
    result = CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=True)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def test_a_classifier_of_scikit_learn_trains_reports_and_evaluates(files):
    call(
        "train", files / "m.onnx", "-d", files / "d.npz", "-e", 2, "--validation", 0.25, "-m", "accuracy",
        "--report", files / "r.html", "-o", files / "t.onnx", "--inference", files / "i.onnx",
    )  # fmt: skip

    trained = call("evaluate", files / "t.onnx", "-d", files / "d.npz", "-m", "accuracy,confusion")
    inference = call("evaluate", files / "i.onnx", "-d", files / "d.npz", "-m", "accuracy")

    assert "Confusion matrix on the validation data" in (files / "r.html").read_text()
    assert "true \\ predicted" in trained.stdout
    assert inference.stdout.split("accuracy")[1].split()[0] == trained.stdout.split("accuracy")[1].split()[0]


def test_a_matrix_of_a_named_output_is_printed(files):
    result = call("evaluate", files / "m.onnx", "-d", files / "d.npz", "-m", "confusion:probabilities")

    assert "confusion matrix of `probabilities`" in result.stdout


def test_a_tuned_inference_model_is_evaluated_on_a_table(files):
    call(
        "train", files / "m.onnx", "-d", files / "d.csv", "--column", "labels=insect", "-q", "--inference",
        files / "i.onnx", "-o", files / "t.onnx",
    )  # fmt: skip

    itself = call("evaluate", files / "t.onnx", "-d", files / "d.csv", "--column", "labels=insect", "-m", "accuracy")
    known = call("evaluate", files / "i.onnx", "-d", files / "d.csv", "-m", "accuracy")
    named = call("evaluate", files / "i.onnx", "-d", files / "d.csv", "-m", "accuracy", "--column", "kind=insect")

    accuracy = itself.stdout.split("accuracy")[1].split()[0]
    assert known.stdout.split("accuracy")[1].split()[0] == accuracy
    assert named.stdout.split("accuracy")[1].split()[0] == accuracy


def test_a_report_never_ends_a_run(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no ink")

    monkeypatch.setattr("onward.train.watchers.build_report", broken)
    x, y = samples()
    trainer = Trainer(classifier(PLAIN, "logits"))

    with pytest.warns(UserWarning, match=r"the report `.*r\.html` could not be written: no ink"):
        trainer.fit(x, y, validation_data=0.2, callbacks=[Report(tmp_path / "r.html")], **QUIET)

    assert trainer.steps == 3


def test_a_matrix_of_a_report_that_fails_is_a_warning(tmp_path, monkeypatch):
    def broken(self, output, target):
        raise ArgumentError(Diagnostic("A101", "these are no classes"))

    monkeypatch.setattr("onward.train.metrics.ConfusionMatrix.update", broken)
    monkeypatch.setattr("onward.train.asked._trial", lambda *_: [])
    x, y = samples()

    with pytest.warns(UserWarning, match="there is no `confusion` in the report: these are no classes"):
        Trainer(classifier(PLAIN, "logits")).fit(
            x, y, validation_data=0.2, callbacks=[Report(tmp_path / "r.html")], **QUIET
        )

    assert "Confusion" not in (tmp_path / "r.html").read_text()


def test_a_confusion_matrix_without_validation_is_that_of_the_training():
    x, y = samples()

    history = Trainer(classifier(PLAIN, "logits")).fit(x, y, metrics=["confusion"], **QUIET)

    assert np.sum(history.confusion) == 120


TWO = "m (float[N, 5] x) => (float[N, 3] a, float[N, 4] b) { a = MatMul(x, A) b = MatMul(x, B) }"


def test_each_output_is_compared_with_the_target_of_its_loss():
    model = onward.make_trainable(
        build(TWO, A=weight(5, 3), B=weight(5, 4)), loss={"a": "cross_entropy", "b": "cross_entropy"}, optimizer="sgd"
    )
    x, y = samples()
    other = x[:, 1:].argmax(axis=1)
    trainer = Trainer(model)
    predicted = trainer.predict(x)

    found = trainer.evaluate({"x": x, "labels/a": y, "labels/b": other}, metrics=["accuracy", "accuracy:b"])

    assert found["accuracy"] == pytest.approx((predicted["a"].argmax(axis=1) == y).mean())
    assert found["accuracy:b"] == pytest.approx((predicted["b"].argmax(axis=1) == other).mean())


def test_the_output_of_the_loss_counts_and_not_the_first():
    model = onward.make_trainable(
        build(TWO, A=weight(5, 3), B=weight(5, 4)), loss="cross_entropy", output="b", optimizer="sgd"
    )
    x, y = samples()
    trainer = Trainer(model)

    found = trainer.evaluate(x, y, metrics=["accuracy"])

    assert found["accuracy"] == pytest.approx((trainer.predict(x)["b"].argmax(axis=1) == y).mean())


def test_a_compiled_program_knows_what_its_loss_reads(tmp_path):
    model = onward.make_trainable(
        build(TWO, A=weight(5, 3), B=weight(5, 4)), loss="cross_entropy", output="b", optimizer="sgd"
    )
    onward.compile(model).save(tmp_path / "program")
    x, y = samples()

    results = [Trainer(m).evaluate(x, y, metrics=["accuracy"]) for m in (model, tmp_path / "program")]

    assert results[0] == results[1]


def test_an_output_of_classes_is_compared_as_classes():
    text = "m (float[N, 5] x) => (int64[N] best) { z = MatMul(x, W) best = ArgMax <axis = 1, keepdims = 0> (z) }"
    trainer = Trainer(build(text, W=weight(5, 3)))
    x, y = samples()

    found = trainer.evaluate({"x": x, "y": y}, metrics=["accuracy"])

    assert found["accuracy"] == pytest.approx((trainer.predict(x) == y).mean())


BOXES = "m (float[N, 5] x) => (float[N, 3] p) { z = MatMul(x, W) e = Erf(z) p = Softmax(e) }"  # Erf only for the output


def refusal(model, **options) -> str:
    x, y = samples()
    trainer = Trainer(model)
    with pytest.raises(ArgumentError) as caught:
        trainer.fit(x, y, **options, **QUIET)
    assert trainer.steps == 0
    return str(caught.value)


def test_what_a_step_does_not_compute_is_refused_before_the_first_step():
    model = onward.make_trainable(build(BOXES, W=weight(5, 3)), loss="cross_entropy", output="z")

    message = refusal(model, metrics=["accuracy"])

    assert "metric `accuracy` reads output `p`, which a training step does not compute" in message
    assert "validation_data" in message


def test_with_validation_data_it_is_shown_for_them():
    model = onward.make_trainable(build(BOXES, W=weight(5, 3)), loss="cross_entropy", output="z")

    history = Trainer(model).fit(*samples(), metrics=["accuracy"], validation_data=0.25, **QUIET)

    assert "val_accuracy" in history.columns
    assert "accuracy" not in history.columns


def test_several_problems_are_listed_at_once():
    model = onward.make_trainable(of_scikit_learn(), loss="cross_entropy", output="z")

    message = refusal(model, metrics=["accuracy:label", "f1:absent", "mae"])

    assert "metric `accuracy` cannot read output `label`" in message
    assert "metric `f1` is for output `absent`" in message
    assert "metric `mae` cannot compare the output with the target" in message


def test_a_target_that_nothing_names_is_refused():
    model = onward.make_trainable(
        build(TWO.replace("float[N, 4] b)", "float[N, 4] b, float[N, 5] c)").replace("}", "c = Identity(x) }"),
              A=weight(5, 3), B=weight(5, 4)),
        loss={"a": "cross_entropy", "b": "cross_entropy"},
    )  # fmt: skip
    x, y = samples()

    with pytest.raises(ArgumentError, match="metric `accuracy` of output `c` has no target to compare with"):
        Trainer(model).evaluate({"x": x, "labels/a": y, "labels/b": y}, metrics=["accuracy:c"])


def test_a_metric_object_may_name_output_and_target():
    metric = Accuracy(from_logits=True)
    metric.output, metric.target = "b", "labels/a"
    model = onward.make_trainable(
        build(TWO, A=weight(5, 3), B=weight(5, 4)), loss={"a": "cross_entropy", "b": "cross_entropy"}
    )
    x, y = samples()
    trainer = Trainer(model)

    found = trainer.evaluate({"x": x, "labels/a": y, "labels/b": y * 0}, metrics=[metric])

    assert found["accuracy:b"] == pytest.approx((trainer.predict(x)["b"].argmax(axis=1) == y).mean())


def test_a_real_file_of_scikit_learn(tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    neural_network = pytest.importorskip("sklearn.neural_network")
    x, y = samples()
    made = neural_network.MLPClassifier((8,), max_iter=5, random_state=0)
    with pytest.warns(Warning, match="hasn't converged"):
        made.fit(x, np.array(["ant", "bee", "cat"])[y])
    proto = skl2onnx.to_onnx(made, x[:1], options={"zipmap": False})

    with pytest.raises(ArgumentError, match="is already a Softmax") as caught:
        onward.make_trainable(proto, loss="cross_entropy", output="probabilities")
    (problem,) = caught.value.diagnostics
    logits = problem.hint.split('output="')[1].split('"')[0]
    trainer = Trainer(onward.make_trainable(proto, loss="cross_entropy", output=logits))
    history = trainer.fit(
        x, y, epochs=2, metrics=["accuracy"], validation_data=0.25, callbacks=[Report(tmp_path / "r.html")], **QUIET
    )

    assert history.confusion is not None
    assert set(history.columns) >= {"accuracy", "val_accuracy"}


def test_a_matrix_that_was_asked_for_is_printed_after_the_training(files):
    result = call("train", files / "m.onnx", "-d", files / "d.npz", "-m", "confusion")

    assert "true \\ predicted" in result.stdout


def test_a_log_on_a_full_disk_does_not_end_the_run(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    trainer = Trainer(classifier(PLAIN, "logits"))

    with pytest.warns(UserWarning, match="the log .* could not be written"):
        trainer.fit(*samples(), callbacks=[JsonLog(tmp_path / "log.jsonl")], **QUIET)

    assert trainer.steps == 4
