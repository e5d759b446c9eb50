"""`onward predict` and `Trainer.predictions`: the numbers of the model under the right names."""

from __future__ import annotations

import csv
import json

import numpy as np
import onnx
import pandas
import pytest
from PIL import Image
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.errors import ArgumentError, DataError, ModelError, OnwardError
from onward.model.task import Task, task_of
from onward.train import Preparation
from onward.train.data.source import ArrayColumn

RNG = np.random.default_rng(3)


def model(body, outputs="float[N, 3] y", inputs="float[N, 4] x", **weights):
    """An inference model in ONNX's text form; weights by name."""
    text = f'<ir_version: 8, opset_import: ["": 18]> net ({inputs}) => ({outputs}) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), name))
    return proto


W = RNG.standard_normal((4, 3)).astype(np.float32)
X = RNG.standard_normal((10, 4)).astype(np.float32)


def softmax(rows):
    e = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rows_of(proto, x=X, **wishes):
    return list(onward.Trainer(proto).predictions(x, **wishes))


def test_logits_become_probabilities_of_the_best_classes():
    rows = rows_of(model("y = MatMul(x, W)", W=W), top=2, probabilities=True, classes=["a", "b", "c"])

    expected = softmax(X.astype(np.float64) @ W)
    order = np.argsort(-expected, axis=1)
    assert [r["class"] for r in rows] == ["abc"[i] for i in order[:, 0]]
    np.testing.assert_allclose([r["probability"] for r in rows], expected.max(axis=1), rtol=1e-5)
    assert [[t["class"] for t in r["top"]] for r in rows] == [["abc"[i] for i in o[:2]] for o in order]
    np.testing.assert_allclose([list(r["probabilities"].values()) for r in rows], expected, rtol=1e-5)
    assert [r["row"] for r in rows] == list(range(10))


@pytest.mark.parametrize(
    "body",
    [
        "l = MatMul(x, W) y = Softmax<axis = 1>(l)",
        "l = MatMul(x, W) s = Softmax<axis = 1>(l) y = Identity(s)",
        "l = MatMul(x, W) e = Exp(l) axes = Constant<value_ints = [1]>() t = ReduceSum(e, axes) y = Div(e, t)",
        "l = MatMul(x, W) y = LogSoftmax<axis = 1>(l)",
    ],
    ids=["softmax", "through identity", "written out", "logarithms"],
)
def test_a_softmax_is_never_applied_twice(body):
    rows = rows_of(model(body, W=W), probabilities=True)

    np.testing.assert_allclose(
        [list(r["probabilities"].values()) for r in rows], softmax(X.astype(np.float64) @ W), rtol=1e-5
    )


def test_without_a_word_about_classes_the_numbers_are_written_and_a_note_says_so():
    predictions = onward.Trainer(model("y = MatMul(x, W)", W=W)).predictions(X)

    rows = list(predictions)

    np.testing.assert_allclose([r["y"] for r in rows], X @ W, rtol=1e-5)
    assert "--as classes" in predictions.notes[0]


def test_the_loss_of_a_training_model_says_what_its_output_means():
    net = model("y = MatMul(x, W)", W=W)
    trained = onward.make_trainable(net, loss="cross_entropy")
    labels = onward.make_trainable(net, loss="bce_with_logits")
    numbers = onward.make_trainable(net, loss="mse")

    assert set(rows_of(trained)[0]) == {"row", "class", "probability"}
    np.testing.assert_allclose(list(rows_of(labels)[0].values())[1:], 1 / (1 + np.exp(-(X[0] @ W))), rtol=1e-5)
    np.testing.assert_allclose(rows_of(numbers)[0]["y"], X[0] @ W, rtol=1e-5)
    # and the inference model keeps it
    for made in (trained, labels, numbers):
        assert rows_of(onward.to_inference(made)) == rows_of(made)


def test_one_number_decides_between_two_classes():
    net = model("l = MatMul(x, W) y = Sigmoid(l)", "float[N, 1] y", W=W[:, :1])

    rows = rows_of(net, classes=["no", "yes"])

    chance = 1 / (1 + np.exp(-(X.astype(np.float64) @ W[:, 0])))
    assert [r["class"] for r in rows] == ["yes" if c > 0.5 else "no" for c in chance]
    np.testing.assert_allclose([r["probability"] for r in rows], np.maximum(chance, 1 - chance), rtol=1e-5)
    assert list(rows_of(net)[0]) == ["row", "y"]  # nothing says that it is a class


def test_the_class_of_a_predicted_number_is_refused():
    trained = onward.make_trainable(model("y = MatMul(x, W)", "float[N, 1] y", W=W[:, :1]), loss="mse")

    with pytest.raises(DataError, match="a number that the model was trained to predict"):
        rows_of(trained, top=2)
    assert len(rows_of(trained, top=2, kind="classes")[0]["top"]) == 2


def test_several_outputs_keep_their_names():
    net = model(
        "a = MatMul(x, W) y = Softmax<axis = 1>(a) m = MatMul(x, V)",
        "float[N, 3] y, float[N, 1] m",
        W=W,
        V=W[:, :1],
    )
    trainer = onward.Trainer(net)

    rows = list(trainer.predictions(X))
    frame = trainer.predictions(X).to_frame()
    only = list(trainer.predictions(X, outputs=["m"]))

    assert rows[0]["y"].keys() == {"class", "probability"}
    np.testing.assert_allclose([r["m"] for r in rows], X @ W[:, 0], rtol=1e-5)
    assert list(frame.columns) == ["row", "y.class", "y.probability", "m"]
    assert [set(r) for r in only] == [{"row", "m"}] * 10


def test_scores_over_time_become_tokens():
    scores = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    net = model("y = Identity(x)", "float[N, T, 3] y", "float[N, T, 3] x")

    arrays = rows_of(net, scores)
    tokens = rows_of(net, scores, kind="tokens", classes=["-", "a", "b"])
    read = rows_of(net, scores, kind="ctc", classes=["-", "a", "b"])

    np.testing.assert_allclose([r["y"] for r in arrays], scores, rtol=1e-6)
    best = scores.argmax(axis=-1)
    assert [r["tokens"] for r in tokens] == [["-ab"[i] for i in row] for row in best]
    for row, found in zip(best, read, strict=True):
        collapsed = [c for i, c in enumerate(row) if i == 0 or row[i - 1] != c]
        assert found["tokens"] == ["-ab"[c] for c in collapsed if c]


def test_the_task_of_a_loss_that_reads_time_first():
    assert Task.of_loss("CTC(reduction='mean', blank=2, time_axis=1)") == Task("ctc", 1, 2)
    assert Task.of_loss("CrossEntropy(reduction='mean') + MSE(reduction='mean')") is None
    assert Task.of_loss("not a (loss") is None
    assert task_of(onward.samples.build("linear")) is None  # written by hand


def test_nan_has_no_class():
    bad = X.copy()
    bad[3] = np.nan

    with pytest.warns(UserWarning, match="NaN for 1 of 10 samples"):
        rows = rows_of(model("l = MatMul(x, W) y = Softmax<axis = 1>(l)", W=W), bad, top=2)

    assert rows[3]["class"] is None
    assert rows[3]["probability"] is None
    assert all(r["class"] is not None for r in rows[:3] + rows[4:])


def test_a_model_of_a_fixed_batch_size_predicts_every_sample():
    net = model("l = MatMul(x, W) y = Softmax<axis = 1>(l)", "float[4, 3] y", "float[4, 4] x", W=W)

    rows = rows_of(net)

    np.testing.assert_allclose([r["probability"] for r in rows], softmax(X @ W).max(axis=1), rtol=1e-5)


def test_an_output_without_one_entry_per_sample_is_refused():
    net = model("m = ReduceMean<keepdims = 0>(x) y = MatMul(x, W)", "float m, float[N, 3] y", W=W)

    with pytest.raises(DataError, match="output `m` does not have one entry per sample") as error:
        rows_of(net)

    assert error.value.code == "T160"
    assert len(rows_of(net, outputs=["y"])) == 10


def test_an_output_that_is_no_sequence_cannot_be_read_as_one():
    with pytest.raises(DataError, match="cannot be read as ctc") as error:
        rows_of(model("y = MatMul(x, W)", W=W), kind="ctc")

    assert error.value.code == "T161"
    with pytest.raises(DataError, match="4 names of classes and output `y` has 3"):
        rows_of(model("y = MatMul(x, W)", W=W), kind="classes", classes=list("abcd"))


def test_wrong_wishes_are_listed_at_once():
    with pytest.raises(ArgumentError) as error:
        rows_of(model("y = MatMul(x, W)", W=W), kind="class", outputs=["z"], top=-1)

    assert len(error.value.diagnostics) == 3
    assert "did you mean `classes`" in str(error.value)


# ------------------------------------------------------------------ files


@pytest.fixture
def photos(tmp_path):
    """A digits model that was trained on folders of images, and images without labels."""
    images = RNG.integers(0, 255, (12, 8, 8), dtype=np.uint8)
    for i, image in enumerate(images):
        folder = tmp_path / "photos" / f"class {i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
        (tmp_path / "new" / "deep").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "new" / ("deep" if i % 2 else ".") / f"{i:02}.png")
    onward.save(onward.samples.build("digits"), tmp_path / "m.onnx")
    trainer = onward.Trainer(tmp_path / "m.onnx")
    trainer.fit(
        tmp_path / "photos", preparation=Preparation(scale=1 / 255), checkpoint=tmp_path / "run", progress=False
    )
    onward.save(trainer.to_inference(), tmp_path / "tuned.onnx")
    onward.save(trainer.to_model(), tmp_path / "tuned.train.onnx")
    onward.compile(trainer.to_model()).save(tmp_path / "program")
    expected = trainer.predict((images[:, None] / 255).astype(np.float32), preparation=Preparation())
    return tmp_path, softmax(np.asarray(expected, np.float64))


def call(*arguments):
    return CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=True)


def ok(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


@pytest.mark.parametrize("kind", ["tuned.onnx", "tuned.train.onnx", "program", "run"])
def test_predict_takes_every_kind_of_model_and_its_preparation(photos, kind):
    work, expected = photos

    ok("predict", work / kind, "--data", work / "new", "-o", work / "p.csv")

    rows = list(csv.DictReader((work / "p.csv").read_text().splitlines()))
    names = sorted([f"{i:02}.png" for i in range(0, 12, 2)] + [f"deep/{i:02}.png" for i in range(1, 12, 2)])
    assert [r["file"] for r in rows] == names
    number = [int(r["file"].split("/")[-1][:2]) for r in rows]
    np.testing.assert_allclose([float(r["probability"]) for r in rows], expected[number].max(axis=1), rtol=1e-4)
    best = expected[number].argmax(axis=1)
    assert [r["class"] for r in rows] == [f"class {b}" if b < 3 else str(b) for b in best]


def test_every_format_holds_the_same(photos):
    work, _ = photos
    for ending in ("csv", "tsv", "json", "jsonl", "parquet"):
        ok("predict", work / "tuned.onnx", "-d", work / "new", "--top", 3, "-b", 5, "-o", work / f"p.{ending}")

    nested = json.loads((work / "p.json").read_text())
    lines = [json.loads(line) for line in (work / "p.jsonl").read_text().splitlines()]
    tables = [
        pandas.read_csv(work / "p.csv", dtype={"class": str, "class_2": str, "class_3": str}),
        pandas.read_csv(work / "p.tsv", sep="\t", dtype={"class": str, "class_2": str, "class_3": str}),
        pandas.read_parquet(work / "p.parquet"),
    ]
    assert nested == lines
    assert len(lines) == 12
    for table in tables:
        assert list(table.columns) == [
            "file", "class", "probability", "class_2", "probability_2", "class_3", "probability_3",
        ]  # fmt: skip
        assert table["class_3"].astype(str).tolist() == [str(r["top"][2]["class"]) for r in lines]
        np.testing.assert_allclose(table["probability_2"], [r["top"][1]["probability"] for r in lines], rtol=1e-9)


def test_without_a_file_the_predictions_go_to_stdout(photos):
    work, _ = photos

    plain = ok("predict", work / "tuned.onnx", "-d", work / "new" / "00.png")
    as_json = ok("predict", work / "tuned.onnx", "-d", work / "new", "--format", "jsonl")

    assert plain.stdout.splitlines()[0] == "file,class,probability"
    assert plain.stdout.splitlines()[1].startswith("00.png,")
    assert len([json.loads(line) for line in as_json.stdout.splitlines()]) == 12


def test_a_failure_in_the_middle_leaves_the_old_file(photos):
    work, _ = photos
    (work / "p.csv").write_text("old")
    (work / "new" / "zz.png").write_bytes(b"not an image")

    result = call("predict", work / "tuned.onnx", "-d", work / "new", "-b", 4, "-o", work / "p.csv")

    assert isinstance(result.exception, DataError)
    assert (work / "p.csv").read_text() == "old"
    assert sorted(p.name for p in work.iterdir() if p.name.startswith(".")) == []


def test_a_table_needs_no_target_and_keeps_columns(tmp_path):
    net = model("y = MatMul(x, W)", W=W)
    frame = pandas.DataFrame(X, columns=list("abcd")).assign(
        name=[f"n{i}" for i in range(10)], kind=["u", "v", "w"] * 3 + ["u"]
    )
    frame.drop(columns="name").to_csv(tmp_path / "train.csv", index=False)
    frame[["name", "d", "b", "c", "a"]].to_csv(tmp_path / "new.csv", index=False)
    trainer = onward.Trainer(onward.make_trainable(net, loss="cross_entropy", label="kind"))
    trainer.fit(tmp_path / "train.csv", progress=False)
    onward.save(trainer.to_inference(), tmp_path / "tuned.onnx")

    result = ok("predict", tmp_path / "tuned.onnx", "-d", tmp_path / "new.csv", "--keep", "name")

    rows = list(csv.DictReader(result.stdout.splitlines()))
    expected = softmax(np.asarray(trainer.predict(X), np.float64))
    assert [r["name"] for r in rows] == [f"n{i}" for i in range(10)]
    assert [r["class"] for r in rows] == ["uvw"[i] for i in expected.argmax(axis=1)]
    np.testing.assert_allclose([float(r["probability"]) for r in rows], expected.max(axis=1), rtol=1e-4)
    with pytest.raises(OnwardError, match="no such column `nme`"):
        trainer.predictions(tmp_path / "new.csv", keep=["nme"])


def test_mistakes_at_the_command_line_are_explained_in_options(photos):
    work, _ = photos

    ending = call("predict", work / "tuned.onnx", "-d", work / "new", "-o", work / "p.xls").exception
    folder = call("predict", work / "tuned.onnx", "-d", work / "new", "-o", work / "no" / "p.csv").exception
    names = call("predict", work / "tuned.onnx", "-d", work / "new", "--classes", "a,a").exception
    parquet = call("predict", work / "tuned.onnx", "-d", work / "new", "--format", "parquet").exception
    missing = call("predict", work / "tuned.onnx", "-d", work / "new", "--classes", work / "no.txt").exception

    assert isinstance(ending, ArgumentError)
    assert ".csv, .tsv, .json, .jsonl, .parquet" in str(ending)
    assert isinstance(folder, ModelError)
    assert "there is no directory" in str(folder)
    assert "two classes are called `a`" in str(names)
    assert "-o FILE" in str(parquet)
    assert "no file" in str(missing)


def test_predictions_are_computed_batch_by_batch():
    taken = []

    class Watched(ArrayColumn):
        def take(self, indices):
            taken.append(indices)
            return super().take(indices)

    from onward.train.data import ColumnSource

    source = ColumnSource({"x": Watched(X)})
    batches = onward.Trainer(model("y = MatMul(x, W)", W=W)).predictions(source, batch_size=4).batches()

    next(batches)

    assert len(taken) == 1
    assert [len(b) for b in batches] == [4, 2]


def two_outputs():
    """Return a trained file with a second output of as many numbers, and what the loss read second in the file."""
    proto = model(
        "other = MatMul(x, V) z = MatMul(x, W) y = Softmax(z)",
        outputs="float[N, 3] other, float[N, 3] y",
        W=W,
        V=-W,
    )
    made = onward.make_trainable(proto, loss="cross_entropy", output="z", optimizer="sgd")
    trainer = onward.Trainer(made)
    labels = np.array(["ja", "nein", "vielleicht"])[(X @ W).argmax(axis=1)]
    trainer.fit({"x": X, "labels": labels}, epochs=1, progress=False, learning_rate=0.0)
    return trainer


@pytest.mark.parametrize("kind", ["training model", "inference model"])
def test_the_names_of_classes_are_those_of_the_output_that_the_loss_read(kind):
    trainer = two_outputs()
    if kind == "inference model":
        trainer = onward.Trainer(trainer.to_inference())

    rows = list(trainer.predictions(X))

    best = (X @ W).argmax(axis=1)
    assert [r["y"]["class"] for r in rows] == [["ja", "nein", "vielleicht"][i] for i in best]
    np.testing.assert_allclose([r["other"] for r in rows], -X @ W, rtol=1e-5)  # plain numbers


def test_a_tuned_file_is_evaluated_by_the_output_that_the_loss_read():
    tuned = onward.Trainer(two_outputs().to_inference())

    found = tuned.evaluate({"x": X, "labels": (X @ W).argmax(axis=1)}, metrics=["accuracy"])

    assert found["accuracy"] == 1.0
