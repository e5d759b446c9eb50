"""`onward train` and `onward evaluate`, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import onward
import onward.samples
from onward.cli.evaluate import evaluate
from onward.cli.train import train
from onward.errors import OnwardError
from onward.train.checkpoint import CheckpointDirectory
from train.test_backends import model, network, samples
from train.test_data_files import write_idx


def call(*arguments):
    app = typer.Typer()
    app.command()(train)
    app.command()(evaluate)
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=True)


def ok(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def fails(*arguments):
    result = call(*arguments)
    assert isinstance(result.exception, OnwardError), result.output + repr(result.exception)
    return str(result.exception)


@pytest.fixture
def work(tmp_path):
    onward.save(model(), tmp_path / "m.onnx")
    x, y = samples(120)
    np.savez(tmp_path / "d.npz", x=x, labels=y)
    return tmp_path


def test_train_writes_everything_it_is_asked_for(work):
    result = ok(
        "train", work / "m.onnx", "--data", work / "d.npz", "--epochs", 2, "--batch-size", 16,
        "--validation", 0.25, "--metric", "accuracy,f1", "--checkpoint", work / "run", "--plot", work / "loss.svg",
        "--report", work / "report.html", "--log", work / "log.jsonl", "--tensorboard", work / "tb",
        "-o", work / "trained.onnx", "--inference", work / "inference.onnx",
    )  # fmt: skip

    assert "epoch 2/2" in result.stderr
    assert "saved" in result.stderr
    ET.parse(work / "loss.svg")
    assert "Confusion matrix" in (work / "report.html").read_text()
    assert json.loads((work / "log.jsonl").read_text().splitlines()[-1])["finished"] is True
    assert list((work / "tb").iterdir())
    assert onnx.load(work / "trained.onnx").training_info
    assert not onnx.load(work / "inference.onnx").training_info
    assert CheckpointDirectory(work / "run").load().step == 12


def test_quiet_is_quiet(work):
    result = ok("train", work / "m.onnx", "--data", work / "d.npz", "-q", "-o", work / "t.onnx")

    assert result.output == ""


def test_resume_gives_the_model_of_one_long_run(work):
    common = ["train", work / "m.onnx", "--data", work / "d.npz", "-q", "-b", 16]
    ok(*common, "--epochs", 4, "-o", work / "long.onnx")

    ok(*common, "--epochs", 2, "--checkpoint", work / "run")
    ok(*common, "--epochs", 4, "--checkpoint", work / "run", "--resume", "-o", work / "resumed.onnx")

    assert (work / "long.onnx").read_bytes() == (work / "resumed.onnx").read_bytes()


def test_resume_without_a_checkpoint_starts(work):
    ok("train", work / "m.onnx", "--data", work / "d.npz", "-q", "--checkpoint", work / "run", "--resume")

    assert CheckpointDirectory(work / "run").load().step == 4


def test_a_run_is_not_overwritten_by_mistake(work):
    common = ["train", work / "m.onnx", "--data", work / "d.npz", "-q", "--checkpoint", work / "run"]
    ok(*common)

    assert "already holds a run" in fails(*common)


def test_evaluate_a_checkpoint_and_a_model_agree(work):
    ok(
        "train", work / "m.onnx", "--data", work / "d.npz", "-q", "--scale", "1/2",
        "--checkpoint", work / "run", "-o", work / "t.onnx",
    )  # fmt: skip

    results = [
        json.loads(ok("evaluate", source, "--data", work / "d.npz", "-m", "accuracy", "--json").stdout)
        for source in (work / "run", work / "t.onnx")
    ]

    assert results[0] == results[1]
    assert results[0]["samples"] == 120
    assert 0 <= results[0]["accuracy"] <= 1


def test_evaluate_prints_a_table_with_the_confusion_matrix(work):
    result = ok("evaluate", work / "m.onnx", "--data", work / "d.npz", "-m", "accuracy,confusion")

    assert "accuracy" in result.stdout
    assert "true \\ predicted" in result.stdout


def test_evaluate_an_inference_model(work):
    ok("train", work / "m.onnx", "--data", work / "d.npz", "-q", "-o", work / "t.onnx", "--inference", work / "i.onnx")

    trained, inference = (
        json.loads(ok("evaluate", work / name, "--data", work / "d.npz", "-m", "accuracy", "--json").stdout)
        for name in ("t.onnx", "i.onnx")
    )

    assert inference == {"samples": 120, "accuracy": trained["accuracy"]}
    assert "has no loss to evaluate" in fails("evaluate", work / "i.onnx", "--data", work / "d.npz")


def test_train_on_an_idx_folder_and_evaluate_on_its_test_part(tmp_path):
    onward.save(onward.samples.build("digits"), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 20)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", rng.integers(0, 17, (count, 8, 8)).astype(np.uint8))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", rng.integers(0, 10, count).astype(np.uint8))

    ok("train", tmp_path / "m.onnx", "--data", tmp_path, "-q", "--scale", "1/16", "--checkpoint", tmp_path / "run")
    result = ok("evaluate", tmp_path / "run", "--data", tmp_path, "--json")

    assert json.loads(result.stdout)["samples"] == 20


@pytest.mark.parametrize(("options", "noted"), [((), True), (("--scale", "1/16"), False), (("-q",), False)])
def test_bytes_that_are_not_scaled_are_noted(tmp_path, options, noted):
    np.savez(tmp_path / "d.npz", images=np.zeros((8, 1, 8, 8), np.uint8), labels=np.arange(8))
    onward.save(onward.samples.digits(), tmp_path / "m.onnx")

    result = ok("train", tmp_path / "m.onnx", "-d", tmp_path / "d.npz", *options)

    assert ("note: `images` gets bytes, 0 to 255, as they are" in result.stderr) is noted


def test_train_on_a_csv_with_text_labels(tmp_path):
    onward.save(model(), tmp_path / "m.onnx")
    x, y = samples(60)
    names = ["ant", "bee", "cat", "dog"]
    lines = [",".join([*(f"{v:.5f}" for v in row), names[k]]) for row, k in zip(x, y, strict=True)]
    (tmp_path / "d.csv").write_text(",".join([*"abcdefgh", "labels"]) + "\n" + "\n".join(lines) + "\n")
    (tmp_path / "dogs.csv").write_text("\n".join(["a,b,c,d,e,f,g,h,labels", *(l for l in lines if l.endswith("dog"))]))

    ok("train", tmp_path / "m.onnx", "--data", tmp_path / "d.csv", "-q", "--epochs", 30, "-o", tmp_path / "t.onnx")
    result = ok("evaluate", tmp_path / "t.onnx", "--data", tmp_path / "dogs.csv", "-m", "accuracy", "--json")

    assert json.loads(result.stdout)["accuracy"] > 0.8  # dog is class 3 here too, although it is alone


def test_train_on_an_image_folder(tmp_path):
    onward.save(onward.samples.build("digits"), tmp_path / "m.onnx")
    for k in range(3):
        (tmp_path / "images" / f"class{k}").mkdir(parents=True)
        for i in range(5):
            Image.new("L", (10, 9), 60 * k + i).save(tmp_path / "images" / f"class{k}" / f"{i}.png")

    ok("train", tmp_path / "m.onnx", "--data", tmp_path / "images", "-q", "--scale", "1/255", "--validation", 0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "there is no `nowhere`"),
        (["--data", "{d}", "--epochs", 0], "epochs is 0"),
        (["--data", "{d}", "--metric", "acuracy"], "did you mean `accuracy`"),
        (["--data", "{d}", "--backend", "onnxruntim"], "did you mean `onnxruntime`"),
        (["--data", "{d}", "--column", "x=X"], "did you mean `x`?"),
        (["--data", "{d}", "--sample-weight", "lable"], "did you mean `labels`?"),
        (["--data", "{d}", "--scale", "half"], "--scale is `half`"),
        (["--data", "{d}", "--column", "x"], "INPUT=COLUMN"),
        (["--data", "{d}", "--validation", "1.5"], "between 0 and 1"),
        (["--data", "{d}", "--on-nan", "ignore"], "invalid on_nan=: `ignore`"),
        (["--data", "{d}", "--early-stopping", 0, "--reduce-on-plateau", -1], "--reduce-on-plateau is -1"),
        (["--data", "{d}", "--early-stopping", 0, "--reduce-on-plateau", -1], "--early-stopping is 0"),
        (["--data", "{d}", "--resume"], "--checkpoint DIR"),
        (["--data", "{d}", "--entry", "nope"], "no such training entry `nope`"),
        (["--data", "{d}", "--column", "x=labels"], "does not have the shape"),
        (["--data", "x={d}", "--data", "{d}"], "NAME=FILE for each of them"),
        (["--data", "{d}", "--report", "{w}"], "cannot be written"),
    ],
)
def test_mistakes_are_explained(work, arguments, message):
    filled = [str(a).format(d=work / "d.npz", w=work) for a in arguments]

    assert message in fails("train", work / "m.onnx", "-q", *filled)


def test_an_inference_model_needs_targets_to_learn_from(tmp_path):
    onnx.save(network(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 8), np.float32))

    assert "nothing says which column is the target" in fails(
        "train", tmp_path / "m.onnx", "--data", tmp_path / "d.npz"
    )


def test_sigterm_saves_and_leaves_with_zero(work):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "import typer; from onward.cli.train import train; typer.run(train)"
    command = [sys.executable, "-c", code, str(work / "m.onnx"), "--data", str(work / "d.npz"), "--epochs", "100000"]
    with subprocess.Popen(
        [*command, "--checkpoint", str(work / "run"), "--checkpoint-every", "20", "-q"], env=environment
    ) as process:
        deadline = time.monotonic() + 60
        while not CheckpointDirectory(work / "run").step_files() and time.monotonic() < deadline:
            time.sleep(0.02)
        began = time.monotonic()

        process.send_signal(signal.SIGTERM)

        assert process.wait(10) == 0
        assert time.monotonic() - began < 5.0
    assert CheckpointDirectory(work / "run").load().step > 0


@pytest.mark.parametrize(("saves", "message"), [(True, "--resume goes on from"), (False, "nothing was saved")])
def test_a_run_that_is_stopped_says_what_becomes_of_it(work, monkeypatch, saves, message):
    def stop(run, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr("onward.train.JsonLog.on_epoch_end", stop)
    monkeypatch.chdir(work)
    options = ("--checkpoint", "run", "--checkpoint-every", 1) if saves else ()

    result = call("train", "m.onnx", "--data", "d.npz", "--log", "log.jsonl", *options)

    assert result.exit_code == 130
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "absent/m.onnx"), "there is no directory"),
        (("--inference", "."), "it is a directory"),
        (("--average", "--inference", "i.onnx"), "keeps no moving average"),
        (("--average",), "--average is for the inference model"),
        (("--keep", 0), "keep is 0"),
        (("--checkpoint", "run", "--checkpoint-every", 0), "checkpoint_every is 0"),
        (("--checkpoint-every", 5), "--checkpoint-every needs a checkpoint directory"),
        (("--std", 0), "std is 0"),
        (("--scale", 0), "scale is 0"),
    ],
)
def test_what_cannot_work_is_refused_before_the_training(work, monkeypatch, options, message):
    monkeypatch.chdir(work)
    before = sorted(work.iterdir())

    text = fails("train", "m.onnx", "--data", "d.npz", "--log", "log.jsonl", *options)

    assert message in text
    assert sorted(work.iterdir()) == before


def test_a_program_cannot_give_a_training_model(work):
    onward.compile(work / "m.onnx").save(work / "program")

    text = fails("train", work / "program", "--data", work / "d.npz", "-o", work / "out.onnx")

    assert "a compiled program cannot be turned back" in text


def test_a_run_is_not_resumed_for_another_model(work):
    onward.save(model(dropout=0.5), work / "other.onnx")
    ok("train", work / "m.onnx", "--data", work / "d.npz", "--checkpoint", work / "run", "-q", "-o", work / "m2.onnx")

    text = fails("train", work / "other.onnx", "--data", work / "d.npz", "--checkpoint", work / "run", "--resume")

    assert "holds the run of another model" in text
    ok(  # the same model with other weights is fine: the weights are those of the run
        "train", work / "m2.onnx", "--data", work / "d.npz", "--checkpoint", work / "run", "--resume", "--epochs", 2
    )  # fmt: skip


def test_evaluate_refuses_a_batch_of_nothing(work):
    assert "batch_size is 0" in fails("evaluate", work / "m.onnx", "--data", work / "d.npz", "--batch-size", 0)


def test_numpy_is_not_heard_on_how_to_unpickle(work):
    (work / "bad.npz").write_text("hello")

    assert "pickle" not in fails("train", work / "m.onnx", "--data", work / "bad.npz")


@pytest.mark.parametrize("chosen", [(), ("--column", "x=" + ",".join(f"f{i}" for i in range(8)))])
def test_a_trained_model_reads_a_table_with_another_order_of_columns_alike(work, chosen):
    x, y = samples(60)
    names = [f"f{i}" for i in range(8)]
    rows = [[*map(str, row), str(label)] for row, label in zip(x.tolist(), y.tolist(), strict=True)]
    (work / "a.csv").write_text("\n".join([",".join([*names, "labels"]), *(",".join(r) for r in rows)]))
    (work / "b.csv").write_text("\n".join([",".join([*names, "labels"][::-1]), *(",".join(r[::-1]) for r in rows)]))
    ok("train", work / "m.onnx", "--data", work / "a.csv", "--validation", 0.2, *chosen, "-o", work / "t.onnx", "-q")

    results = [ok("evaluate", work / "t.onnx", "--data", work / f"{t}.csv", "--json").stdout for t in "ab"]

    assert json.loads(results[0])["loss"] == pytest.approx(json.loads(results[1])["loss"], rel=1e-6)
