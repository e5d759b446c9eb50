"""`onward train` on a plain inference file: what it chooses, what it prints, and that the printed commands agree."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pandas
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_iris
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.cli.speech import spoken
from onward.errors import ArgumentError
from train.test_predictions import model

RNG = np.random.default_rng(5)


def call(*arguments):
    return CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=True)


def ok(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def printed_commands(text: str) -> list[list[str]]:
    lines = text.partition("the same in two commands:\n")[2].splitlines()[:2]
    return [shlex.split(line)[1:] for line in lines]


def same_by_hand(text: str, tuned: str = "tuned.onnx") -> None:
    """Assert that the printed commands give the same bytes."""
    first = Path(tuned).read_bytes()
    Path(tuned).unlink()
    make, train = printed_commands(text)
    assert [make[0], train[0]] == ["make-trainable", "train"]
    ok(*make)
    ok(*train)
    assert Path(tuned).read_bytes() == first


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def photos(work):
    """Folders of handwritten digits 0 to 3, a network for ten classes, new images without labels."""
    digits = load_digits()
    chosen = [i for i in range(600) if digits.target[i] < 4]
    for i in chosen:
        folder = work / "photos" / ("zero", "one", "two", "three")[digits.target[i]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).save(folder / f"{i}.png")
    (work / "new").mkdir()
    for i in range(600, 660):
        if digits.target[i] < 4:
            name = ("zero", "one", "two", "three")[digits.target[i]]
            Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).save(work / "new" / f"{name}_{i}.png")
    onward.save(onward.samples.digits_network(), "net.onnx")
    return work


def test_folders_of_images_in_one_command(photos):
    result = ok(
        "train", "net.onnx", "--data", "photos", "--classes", "auto", "--train", "*", "--lr", 0.003, "--epochs", 6,
        "--inference", "tuned.onnx",
    )  # fmt: skip
    ok("predict", "tuned.onnx", "--data", "new", "-o", "p.json")

    rows = json.loads(Path("p.json").read_text())
    right = [r["class"] == r["file"].split("_")[0] for r in rows]
    assert np.mean(right) > 0.9
    assert {r["class"] for r in rows} <= {"zero", "one", "two", "three"}
    for part in ("4 classes", "--classes", "cross_entropy", "adamw", "--scale", "times 1/255", "--validation", "0.2"):
        assert part in result.stderr
    assert re.search(r"val_accuracy 0\.\d", result.stderr)
    same_by_hand(result.stderr)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mean", "0.4", "--std", "0.3"], "times 1/255, minus 0.4, divided by 0.3"),
        (["--mean", "0.4", "--std", "0.3", "--scale", "1"], "times 1, minus 0.4, divided by 0.3"),
        (["--mean", "123.7", "--std", "58.4"], "minus 123.7, divided by 58.4"),
    ],
)
def test_the_mean_of_pixels_from_0_to_1_means_pixels_from_0_to_1(photos, options, said):
    result = ok(
        "train",
        "net.onnx",
        "--data",
        "photos",
        "--classes",
        "auto",
        "--epochs",
        1,
        *options,
        "--inference",
        "tuned.onnx",
    )

    assert f"pixels     {said}   (" in result.stderr
    stored = json.loads({p.key: p.value for p in onnx.load("tuned.onnx").metadata_props}["onward.preparation"])
    assert stored.get("scale", 1.0) == pytest.approx(1 / 255 if "1/255" in said else 1.0)


@pytest.mark.parametrize("names", [4, 10])
def test_an_old_file_keeps_its_operator_set_or_the_note_says_that_it_cannot(photos, names):
    onnx.save(onnx.version_converter.convert_version(onnx.load("net.onnx"), 15), "old.onnx")
    for name in ("four", "five", "six", "seven", "eight", "nine")[: names - 4]:
        Path("photos", name).mkdir()
        Path("photos", name, "0.png").write_bytes(next(Path("photos", "one").iterdir()).read_bytes())

    result = ok(
        "train", "old.onnx", "--data", "photos", "--classes", "auto", "--epochs", 1, "--inference", "tuned.onnx"
    )

    kept = names == 10  # the network has ten classes: fresh weights are other weights of the same file
    assert onnx.load("tuned.onnx").opset_import[0].version == (15 if kept else 18)
    assert ("so that the tuned file has operator set 18; `old.onnx` has 15" in result.stderr) != kept


def test_mixed_targets_choose_the_loss_that_takes_them_and_the_course_is_the_one_asked_for(photos):
    result = ok(
        "train", "net.onnx", "--data", "photos", "--classes", "auto", "--epochs", 1, "--augment", "mixup,cutmix",
        "--schedule", "linear", "--warmup", 3, "--inference", "tuned.onnx",
    )  # fmt: skip

    assert "targets    a probability for each class" in result.stderr
    assert "rate 0.005, 3 steps of warm-up, then a line to 0" in result.stderr
    assert "--set-loss targets=probability" in result.stderr
    same_by_hand(result.stderr)


def test_a_file_whose_loss_takes_class_numbers_says_the_option_for_mixed_targets(photos):
    onward.save(onward.make_trainable("net.onnx", loss="cross_entropy", classes=4), "net.train.onnx")

    error = call("train", "net.train.onnx", "--data", "photos", "--augment", "mixup").exception

    assert "make the model with --set-loss targets=probability" in spoken(error.diagnostics[0]).hint


def test_a_new_head_is_trained_alone_and_the_body_stays(photos):
    ok("train", "net.onnx", "-d", "photos", "--classes", "auto", "-e", 1, "--inference", "t.onnx", "-q")

    before = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load("net.onnx").graph.initializer}
    after = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load("t.onnx").graph.initializer}
    changed = [n for n, a in after.items() if n in before and not np.array_equal(a, before[n])]
    assert changed
    assert all(n.startswith("fc2") for n in changed)


def test_without_classes_a_wrong_number_of_them_is_refused(photos):
    error = call("train", "net.onnx", "-d", "photos", "--inference", "t.onnx").exception

    assert isinstance(error, ArgumentError)
    assert "the data has 4 classes and output `logits` has 10" in str(error)
    assert "--classes auto" in str(error)


def test_a_table_with_text_and_one_with_numbers(work):
    iris = load_iris(as_frame=True)
    frame = iris.data.assign(species=[iris.target_names[t] for t in iris.target])
    frame.to_csv("iris.csv", index=False)
    frame.drop(columns="species").assign(width=iris.data.iloc[:, 3] * 2.0).to_csv("width.csv", index=False)
    W = (RNG.standard_normal((4, 8)) * 0.5).astype(np.float32)
    body = "a = MatMul(x, W) h = Tanh(a) l = MatMul(h, V) y = Softmax<axis = 1>(l)"
    onnx.save(model(body, "float[N, 5] y", W=W, V=RNG.standard_normal((8, 5)) * 0.3), "net.onnx")
    onnx.save(model("y = MatMul(x, W)", "float[N, 1] y", W=W[:, :1]), "line.onnx")

    classes = ok(
        "train", "net.onnx", "-d", "iris.csv", "--classes", "auto", "--target", "species", "--train", "*", "--lr", 0.02,
        "-e", 30, "-b", 16, "--inference", "tuned.onnx",
    )  # fmt: skip
    ok("predict", "tuned.onnx", "-d", "iris.csv", "--keep", "species", "-o", "p.csv")
    rows = pandas.read_csv("p.csv")
    assert (rows["class"] == rows["species"]).mean() > 0.9
    assert onnx.load("tuned.onnx").graph.node[-1].op_type == "Softmax"
    same_by_hand(classes.stderr)

    numbers = ok("train", "line.onnx", "-d", "width.csv", "--lr", 0.05, "-e", 60, "-b", 16, "--inference", "tuned.onnx")
    assert "mse of `y`" in numbers.stderr
    assert "mae" in numbers.stderr
    ok("predict", "tuned.onnx", "-d", "width.csv", "-o", "w.csv")
    off = pandas.read_csv("w.csv")["y"] - iris.data.iloc[:, 3] * 2
    assert np.abs(off).mean() < 0.5
    same_by_hand(numbers.stderr)


def test_arrays_of_other_names_are_matched(work):
    x = RNG.standard_normal((200, 4)).astype(np.float32)
    np.savez("d.npz", pixels=x, y=np.argmax(x[:, :3], axis=1))
    onnx.save(model("y = MatMul(x, W)", W=RNG.standard_normal((4, 3)) * 0.1), "net.onnx")

    result = ok("train", "net.onnx", "-d", "d.npz", "--lr", 0.05, "-e", 10, "--inference", "tuned.onnx")

    assert "--column labels=y --column x=pixels" in result.stderr
    assert "kept: `y`" in result.stderr
    last = next(line for line in result.stderr.splitlines() if line.startswith("epoch 10/10"))
    assert float(re.search(r"val_accuracy ([\d.]+)", last)[1]) > 0.85
    same_by_hand(result.stderr)


def test_a_run_of_a_plain_file_is_resumed(work):
    x = RNG.standard_normal((64, 4)).astype(np.float32)
    np.savez("d.npz", x=x, labels=np.argmax(x[:, :3], axis=1))
    onnx.save(model("y = MatMul(x, W)", W=RNG.standard_normal((4, 3))), "net.onnx")
    command = [
        "train",
        "net.onnx",
        "-d",
        "d.npz",
        "-e",
        2,
        "-b",
        8,
        "--checkpoint",
        "run",
        "--inference",
        "t.onnx",
        "-q",
    ]

    ok(*command)
    first = Path("t.onnx").read_bytes()
    ok(*command, "--resume")

    assert Path("t.onnx").read_bytes() == first


def test_options_for_plain_files_are_refused_for_training_files(work):
    onward.save(onward.samples.build("digits"), "m.train.onnx")
    np.savez("d.npz", images=np.zeros((4, 1, 8, 8), np.float32), labels=np.zeros(4, np.int64))

    error = call("train", "m.train.onnx", "-d", "d.npz", "--classes", "auto", "--loss", "mse").exception

    assert isinstance(error, ArgumentError)
    assert "already says how it is trained" in str(error)
    assert "--classes, --loss" in str(error)
    assert "onward strip" in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "spesies"], "did you mean `species`"),
        (["--schedule", "cosin"], "did you mean `cosine`"),
        (["--warmup", 10_000], "the run has"),
        (["--loss", "mze"], "did you mean `mse`"),
    ],
)
def test_mistakes_are_explained_before_the_first_step(work, options, message):
    iris = load_iris(as_frame=True)
    iris.data.assign(species=[iris.target_names[t] for t in iris.target]).to_csv("iris.csv", index=False)
    onnx.save(model("y = MatMul(x, W)", W=RNG.standard_normal((4, 3))), "net.onnx")

    error = call("train", "net.onnx", "-d", "iris.csv", "--inference", "t.onnx", *options).exception

    assert isinstance(error, ArgumentError), error
    assert message in str(error)
    assert not Path("t.onnx").exists()


def test_data_without_targets_is_refused(work):
    np.savez("d.npz", x=np.zeros((30, 4), np.float32))
    onnx.save(model("y = MatMul(x, W)", W=RNG.standard_normal((4, 3))), "net.onnx")

    error = call("train", "net.onnx", "-d", "d.npz").exception

    assert isinstance(error, ArgumentError)
    assert "--target COLUMN" in str(error)


def test_a_schedule_is_for_every_model(work):
    onward.save(onward.samples.build("digits"), "m.train.onnx")
    np.savez("d.npz", images=RNG.random((64, 1, 8, 8), dtype=np.float32), labels=RNG.integers(0, 10, 64))

    result = ok(
        "train", "m.train.onnx", "-d", "d.npz", "-b", 16, "-e", 2, "--lr", 0.1, "--schedule", "linear", "--warmup", 2,
        "--json",
    )  # fmt: skip

    rates = [e["learning_rate"] for e in map(json.loads, result.stdout.splitlines()) if e["event"] == "epoch"]
    assert len(rates) == 2
    assert rates[1] < rates[0] <= 0.1


def test_a_folder_of_images_feeds_an_input_of_any_name(photos):
    """The target is called `labels`, as the folder's column is; the input is called `x`, which no column is."""
    body = "f = Flatten(x) y = MatMul(f, W)"
    onnx.save(model(body, "float[N, 4] y", "float[N, 1, 8, 8] x", W=RNG.standard_normal((64, 4)) * 0.1), "x.onnx")

    result = ok("train", "x.onnx", "-d", "photos", "--lr", 0.01, "-e", 6, "--inference", "tuned.onnx")

    assert "val_accuracy 0.9" in result.stderr or "val_accuracy 1" in result.stderr
    same_by_hand(result.stderr)
