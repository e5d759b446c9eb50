"""What `onward train` on a plain file makes of the targets: classes by any name, quantities, yes and no."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pandas
import pytest
from PIL import Image

import onward
from cli.test_finetune import call, ok, same_by_hand
from onward.errors import ArgumentError
from train.test_predictions import model

RNG = np.random.default_rng(7)
X = RNG.standard_normal((60, 4)).astype(np.float32)
KIND = np.repeat([0, 1, 2], 20)
X[np.arange(60), KIND] += 4


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Networks that end in a Softmax over five classes, in one Sigmoid, and in one number."""
    monkeypatch.chdir(tmp_path)
    V = RNG.standard_normal((4, 5)) * 0.3
    onnx.save(model("l = MatMul(x, W) y = Softmax<axis = 1>(l)", "float[N, 5] y", W=V), "five.onnx")
    onnx.save(model("l = MatMul(x, W) y = Sigmoid(l)", "float[N, 1] y", W=V[:, :1]), "yes.onnx")
    onnx.save(model("y = MatMul(x, W)", "float[N, 1] y", W=V[:, :1]), "line.onnx")
    return tmp_path


def table(targets, name="t.csv"):
    pandas.DataFrame(X, columns=list("abcd")).assign(t=targets).to_csv(name, index=False)
    return name


@pytest.mark.parametrize(
    "values", [[1, 2, 3], [10, 20, 30], [-1, 0, 1], [True, False, True]], ids=["from 1", "tens", "signs", "truth"]
)
def test_classes_that_are_not_the_numbers_from_zero_keep_their_names(work, values):
    truth = np.array(values)[KIND]
    table(truth)

    result = ok(
        "train", "five.onnx", "-d", "t.csv", "--classes", "auto", "--lr", 0.1, "-e", 20, "--inference", "tuned.onnx"
    )
    ok("predict", "tuned.onnx", "-d", "t.csv", "-o", "p.csv")
    judged = ok("evaluate", "tuned.onnx", "-d", "t.csv", "--target", "t", "-m", "accuracy", "--json")

    right = np.mean(pandas.read_csv("p.csv")["class"].to_numpy() == truth)
    assert onnx.load("tuned.onnx").graph.output[0].type.tensor_type.shape.dim[1].dim_value == len(set(values))
    assert right > 0.9
    assert json.loads(judged.stdout)["accuracy"] == pytest.approx(right)
    same_by_hand(result.stderr)


@pytest.mark.parametrize(
    ("file", "targets", "options", "message"),
    [
        ("five.onnx", range(1000, 1060), ["--classes", "auto"], "60 different values in 60 samples"),
        ("five.onnx", [f"row {i}" for i in range(60)], ["--classes", "auto"], "60 different values in 60 samples"),
        ("yes.onnx", np.array(["a", "b", "c"])[KIND], [], "the data has 3 classes and output `y` has 1"),
        ("line.onnx", np.array(["a", "b", "c"])[KIND], [], "the data has 3 classes and output `y` has 1"),
        ("yes.onnx", KIND, [], "the data has 3 classes and output `y` has 1"),
        ("yes.onnx", KIND % 2 + 1, [], "the data has 2 classes and output `y` has 1"),
    ],
)
def test_targets_that_cannot_be_the_classes_are_refused(work, file, targets, options, message):
    table(list(targets))

    error = call("train", file, "-d", "t.csv", *options, "--inference", "t.onnx").exception

    assert isinstance(error, ArgumentError), error
    assert message in str(error)
    assert not Path("t.onnx").exists()


def test_arrays_of_classes_that_are_not_the_numbers_from_zero_are_refused(work):
    np.savez("d.npz", x=X, labels=KIND + 1)

    error = call("train", "five.onnx", "-d", "d.npz", "--classes", "auto").exception

    assert "the 3 classes of the data are not the numbers from 0 to 2" in str(error)
    assert "or --classes 4" in str(error)


def test_whole_numbers_may_be_a_quantity(work):
    result = ok("train", "line.onnx", "-d", table(list(range(1000, 1060))), "--inference", "tuned.onnx", "-e", 1)

    assert "targets: numbers" in result.stderr
    assert "mse of `y`" in result.stderr


def test_yes_and_no_of_one_sigmoid(work):
    result = ok("train", "yes.onnx", "-d", table(KIND > 0), "--lr", 0.1, "-e", 20, "--inference", "tuned.onnx")
    ok("predict", "tuned.onnx", "-d", "t.csv", "-o", "p.csv")

    assert "bce_with_logits of `l`" in result.stderr
    assert np.mean(pandas.read_csv("p.csv")["class"].to_numpy() == (KIND > 0)) > 0.9


def test_a_head_that_is_asked_for_has_the_rate_of_a_new_head(work):
    command = ["train", "five.onnx", "-d", table(KIND), "--classes", "auto", "-e", 1, "--inference"]

    by_default = ok(*command, "a.onnx")
    asked = ok(*command, "b.onnx", "--train", "head")

    assert "rate 0.005" in by_default.stderr
    assert "rate 0.005" in asked.stderr
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_another_loss_of_classes_has_accuracy_and_predicts_classes(work):
    result = ok(
        "train", "five.onnx", "-d", table(np.array(["a", "b", "c"])[KIND]), "--classes", "auto", "--loss", "focal",
        "--lr", 0.1, "-e", 10, "--inference", "tuned.onnx",
    )  # fmt: skip
    ok("predict", "tuned.onnx", "-d", "t.csv", "-o", "p.csv")

    assert "val_accuracy" in result.stderr
    assert np.mean(pandas.read_csv("p.csv")["class"] == np.array(["a", "b", "c"])[KIND]) > 0.9


def test_what_is_printed_is_about_this_run(work):
    """The note about a head that an earlier run made does not come back, and the loss reads the logits."""
    table(KIND)
    first = ok("train", "five.onnx", "-d", "t.csv", "--classes", "auto", "-e", 1, "--inference", "tuned.onnx")
    second = ok("train", "tuned.onnx", "-d", "t.csv", "--target", "t", "-e", 1, "--inference", "again.onnx")

    assert "cross_entropy of `l`" in first.stderr
    assert "with 5 classes" in first.stderr
    assert "kept: `y`" in second.stderr


def test_the_value_for_a_cut_can_be_named_where_the_message_asks_for_it(work):
    body = "h = MatMul(x, W) e = Erf(h) y = Split<axis = 1, num_outputs = 1>(e)"
    onnx.save(model(body, "float[N, 5] y", W=RNG.standard_normal((4, 5))), "odd.onnx")
    table(KIND)

    error = call("train", "odd.onnx", "-d", "t.csv", "--classes", "auto").exception
    result = ok("train", "odd.onnx", "-d", "t.csv", "--classes", "auto", "--cut", "h", "-e", 1, "--inference", "o.onnx")

    assert "--cut with the value" in str(error) or "cut= with the value" in str(error)
    assert "a linear layer with 3 classes and 5 features reads `h`" in result.stderr
    assert onward.load("o.onnx").graph.outputs[0].shape[1] == 3


@pytest.mark.parametrize("zipmap", [True, False], ids=["maps", "tensors"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_file_of_scikit_learn_as_it_comes(work, classes, zipmap):
    """A classifier of two classes gives 1 - p and p of one Sigmoid; by default the probabilities are a list of maps."""
    skl2onnx = pytest.importorskip("skl2onnx")
    neural_network = pytest.importorskip("sklearn.neural_network")
    made = neural_network.MLPClassifier(hidden_layer_sizes=(8,), max_iter=2, random_state=0)
    truth = np.array(["ant", "bee", "cow"])[KIND % classes]
    with pytest.warns(Warning, match="hasn't converged"):
        made.fit(X, truth)
    proto = skl2onnx.to_onnx(made, X[:1], options={id(made): {"zipmap": zipmap}})
    onnx.save(proto, "sk.onnx")
    output = proto.graph.output[1].name

    result = ok(
        "train",
        "sk.onnx",
        "-d",
        table(truth),
        "--lr",
        0.05,
        "-e",
        10,
        "--report",
        "r.html",
        "--inference",
        "tuned.onnx",
    )
    ok("predict", "tuned.onnx", "-d", "t.csv", "-o", "p.csv")
    judged = ok("evaluate", "tuned.onnx", "-d", "t.csv", "-m", "accuracy", "--json")

    rows = pandas.read_csv("p.csv")
    assert ("bce_with_logits" if classes == 2 else "cross_entropy") + " of `add_result1`" in result.stderr
    assert (rows[f"{output}.class"] == truth).mean() > 0.9
    assert (rows[proto.graph.output[0].name] == truth).mean() > 0.9
    assert json.loads(judged.stdout)["accuracy"] > 0.9
    assert [n.op_type for n in onnx.load("tuned.onnx").graph.node] == [n.op_type for n in proto.graph.node]


def test_what_systems_and_editors_leave_in_folders_is_no_class(work):
    """Finder's `__MACOSX` and `._1.png`, Jupyter's copies; a folder without images is named."""
    for name in ("cat", "dog", "__MACOSX", "cat/.ipynb_checkpoints", "heic"):
        (work / "photos" / name).mkdir(parents=True)
        for i in range(12):
            picture = Image.fromarray(RNG.integers(0, 255, (2, 2), np.uint8))
            picture.save(work / "photos" / name / f"{i}.{'png' if name != 'heic' else 'bmp'}")
    (work / "photos" / "cat" / "._1.png").write_bytes(b"no image")
    for path in (work / "photos" / "heic").iterdir():
        path.rename(path.with_suffix(".heic"))
    body = "f = Flatten(x) y = MatMul(f, W)"
    onnx.save(model(body, "float[N, 5] y", "float[N, 1, 2, 2] x", W=RNG.standard_normal((4, 5))), "net.onnx")

    with pytest.warns(UserWarning, match="`heic` in `photos`: no images, and so no class"):
        result = ok("train", "net.onnx", "-d", "photos", "--classes", "auto", "-e", 1, "--inference", "tuned.onnx")

    assert "24 samples, targets: 2 classes" in result.stderr
    assert "--classes cat,dog" in result.stderr


def test_a_quantised_file_is_made_of_floats_where_the_message_says_so(work):
    quantization = pytest.importorskip("onnxruntime.quantization")
    quantization.quantize_dynamic("five.onnx", "q.onnx")
    command = ["train", "q.onnx", "-d", table(KIND), "--classes", "auto", "-e", 2, "--inference", "tuned.onnx"]

    error = call(*command).exception
    result = ok(*command, "--dequantize")

    assert "dequantize" in str(error)
    assert "with 5 classes" in result.stderr
    same_by_hand(result.stderr)


def test_a_table_with_other_separators_says_so(work):
    Path("t.csv").write_text("a;b;c;d;t\n1,5;2;3;4;x\n2,5;2;3;4;y\n")

    error = call("train", "five.onnx", "-d", "t.csv", "--classes", "auto").exception

    assert "the columns of `t.csv` are separated by ';'" in str(error)


def test_arrays_of_other_names_feed_the_tuned_file_too(work):
    """What training found out by itself, evaluate and predict find out as well."""
    np.savez("a.npz", pixels=X, y=KIND)
    ok("train", "five.onnx", "-d", "a.npz", "--classes", "auto", "-e", 1, "--inference", "tuned.onnx")

    judged = ok("evaluate", "tuned.onnx", "-d", "a.npz", "-m", "accuracy", "--json")
    ok("predict", "tuned.onnx", "-d", "a.npz", "-o", "p.csv")

    right = np.mean(pandas.read_csv("p.csv")["class"].to_numpy() == KIND)
    assert json.loads(judged.stdout)["accuracy"] == pytest.approx(right)


def test_two_arrays_that_could_be_the_input_are_a_choice_for_the_user(work):
    np.savez("a.npz", first=X, second=X)

    result = call("predict", "line.onnx", "-d", "a.npz")

    assert result.exit_code == 1
    assert "no column `x` in the data" in str(result.exception) + result.stderr


def test_names_of_classes_in_arrays_are_refused(work):
    np.savez("a.npz", x=X, y=np.array(["ja", "nein", "doch"])[KIND])

    result = call("train", "five.onnx", "-d", "a.npz", "--classes", "auto", "-e", 1, "--inference", "tuned.onnx")

    assert result.exit_code == 1
    assert "`y` holds text, and arrays hold the numbers of classes" in str(result.exception) + result.stderr


def test_a_command_in_a_hint_can_be_pasted(work):
    proto = model("a = MatMul(x, W) y = Relu(a)", "float[N, 5] y, float[N, 5] a", W=RNG.standard_normal((4, 5)))
    onnx.save(proto, "my file.onnx")
    np.savez("a.npz", x=X, y=KIND)

    result = call("train", "my file.onnx", "-d", "a.npz", "-e", 1, "--inference", "tuned.onnx")

    assert "onward doctor 'my file.onnx'" in str(result.exception) + result.stderr


def test_a_logistic_regression_of_scikit_learn_as_it_comes(work):
    """Its Softmax is normalised again and becomes a map; the loss reads the logits in front of it all."""
    skl2onnx = pytest.importorskip("skl2onnx")
    linear_model = pytest.importorskip("sklearn.linear_model")
    truth = np.array(["ant", "bee", "cow"])[KIND]
    made = linear_model.LogisticRegression(C=1e-3).fit(X, truth)
    onnx.save(skl2onnx.to_onnx(made, X[:1]), "sk.onnx")

    result = ok("train", "sk.onnx", "-d", table(truth), "--lr", 0.05, "-e", 5, "--inference", "tuned.onnx")
    ok("predict", "tuned.onnx", "-d", "t.csv", "-o", "p.csv")

    assert "cross_entropy of `LinearClassifier/Gemm:out`" in result.stderr
    assert (pandas.read_csv("p.csv")["output_probability.class"] == truth).mean() > 0.9


def reader_and_lines(blank: int = 0, **more):
    """Write a reader of two letters (class 0 of the data is the blank) and thirty lines; return the labels."""
    weight = RNG.standard_normal((4, 5))
    onnx.save(model("z = MatMul(x, W) y = Softmax(z)", "float[N, 6, 5] y", "float[N, 6, 4] x", W=weight), "reader.onnx")
    labels = np.where(RNG.random((30, 2)) < 0.5, 1, 2) - (blank > 0)
    labels[:7, 1] = -1
    np.savez("a.npz", x=RNG.standard_normal((30, 6, 4)).astype(np.float32), labels=labels, **more)
    return labels


def test_a_loss_takes_its_settings_in_the_one_command(work):
    reader_and_lines(**{"labels/output_lengths": np.full(30, 6), "labels/label_lengths": np.full(30, 2)})
    settings = ["--set-loss", "logits=True", "--set-loss", "time_axis=1", "--set-loss", "zero_infinity=True"]

    result = ok(
        "train", "reader.onnx", "-d", "a.npz", "--loss", "ctc", "--on", "z", *settings, "-e", 1,
        "--inference", "tuned.onnx",
    )  # fmt: skip

    assert "--set-loss time_axis=1 --set-loss logits=True --set-loss zero_infinity=True" in result.stderr
    assert json.loads(ok("evaluate", "tuned.onnx", "-d", "a.npz", "-m", "cer", "--json").stdout)["cer"] >= 0


@pytest.mark.parametrize("head", [[], ["--classes", "a,b"]])
@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_needs_nothing_but_its_name(work, head, blank):
    """The graph says where time and logits are; the lengths follow from the labels."""
    labels = reader_and_lines(blank)
    arguments = ["train", "reader.onnx", "-d", "a.npz", "--loss", "ctc", *head, "-e", 2, "--validation", 0]
    arguments += ["--set-loss", f"blank={blank}"] if blank else []

    result = ok(*arguments, "--inference", "tuned.onnx")
    without = Path("tuned.onnx").read_bytes()
    with np.load("a.npz") as data:
        lengths = {"labels/output_lengths": np.full(30, 6), "labels/label_lengths": (labels >= 0).sum(1)}
        np.savez("a.npz", x=data["x"], labels=labels, **lengths)
    ok(*arguments, "--inference", "tuned.onnx")

    assert f"class {blank} is the blank; a row ends at its first -1 or {blank}; every step of the output counts" in (
        result.stderr
    )
    assert onnx.load("tuned.onnx").graph.output[0].type.tensor_type.shape.dim[2].dim_value == (3 if head else 5)
    assert Path("tuned.onnx").read_bytes() == without


def test_the_printed_commands_for_ctc_give_the_same_bytes(work):
    reader_and_lines(2)

    result = ok(
        "train", "reader.onnx", "-d", "a.npz", "--loss", "ctc", "--classes", "a,b", "--set-loss", "blank=2", "-e", 1,
        "--inference", "tuned.onnx",
    )  # fmt: skip

    same_by_hand(result.stderr)
