"""Whole journeys at the command line, with files and data that nobody made for Onward."""

from __future__ import annotations

import csv
import json
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from journeys.pictures import NAMES, Digits, Shell, write_photos

FIT = ("--scale", "1/255", "--epochs", "8", "--batch-size", "16", "-q")


def accuracy(path: Path, folder: Path) -> float:
    """Return the share of the pictures of a prediction file whose best class is their folder."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(1 for _ in folder.rglob("*.png"))
    return float(np.mean([Path(row["file"]).parent.name == row["class"] for row in rows]))


def evaluated(shell: Shell, *words: str | Path) -> dict[str, float]:
    """Return what `onward evaluate` says, as numbers."""
    return dict(json.loads(shell("evaluate", *words, "--json").stdout))


def test_my_classes_on_somebody_elses_network(
    shell: Shell, classifier: Path, photos: Path, digits: Digits, tmp_path: Path
) -> None:
    """Journey 1: take a model, give it my classes, train it on my data, use it."""
    held_out = write_photos(tmp_path / "new", digits, range(100, 130))

    shell(
        "train",
        classifier,
        "--data",
        photos,
        "--classes",
        "auto",
        "--train",
        "*",
        "--lr",
        "3e-3",
        "--inference",
        "tuned.onnx",
        *FIT,
    )
    shell("predict", "tuned.onnx", "--data", held_out, "-o", "predictions.csv")

    assert accuracy(tmp_path / "predictions.csv", held_out) > 0.85
    tuned = onnx.load(tmp_path / "tuned.onnx")
    assert tuned.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 5
    assert tuned.graph.node[-1].op_type == "Softmax"


def test_a_run_is_a_model(shell: Shell, classifier: Path, photos: Path, tmp_path: Path) -> None:
    """Journey 2: keep checkpoints, then use the run itself: evaluate, strip, predict, show."""
    names = ",".join(sorted(NAMES[5:]))
    shell("make-trainable", classifier, "--loss", "cross_entropy", "--classes", names, "-o", "t.onnx")
    shell("train", "t.onnx", "--data", photos, "--checkpoint", "run", "--keep-best", "-m", "accuracy", *FIT)

    of_run = evaluated(shell, "run", "--data", photos, "-m", "accuracy")
    shell("strip", "run", "-o", "tuned.onnx")
    of_file = evaluated(shell, "tuned.onnx", "--data", photos, "-m", "accuracy")
    shell("predict", "run", "--data", photos, "-o", "predictions.csv")
    shell("show", "run")

    assert of_run["accuracy"] > 0.9
    assert of_file["accuracy"] == pytest.approx(of_run["accuracy"])
    assert accuracy(tmp_path / "predictions.csv", photos) == pytest.approx(of_run["accuracy"])


def test_killed_and_resumed(shell: Shell, classifier: Path, photos: Path, tmp_path: Path) -> None:
    """Journey 3: a machine that dies in the middle costs nothing: equal bytes."""
    shell("make-trainable", classifier, "--loss", "cross_entropy", "--classes", "5", "-o", "t.onnx")
    words = ("t.onnx", "--data", str(photos), "--scale", "1/255", "-e", "12", "-b", "8", "-q")
    shell("train", *words, "--checkpoint", "whole", "--output", "whole.onnx")
    command = [sys.executable, "-m", "onward", "train", *words, "--checkpoint", "run", "--checkpoint-every", "7"]
    process = subprocess.Popen(command, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "run").glob("step-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()

    shell("train", *words, "--checkpoint", "run", "--checkpoint-every", "7", "--resume", "--output", "resumed.onnx")

    assert (tmp_path / "resumed.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


def test_interrupted_by_hand(shell: Shell, classifier: Path, photos: Path, tmp_path: Path) -> None:
    """Journey 4: Ctrl-C after a while: the model that was asked for is there, with what was learned so far."""
    shell("make-trainable", classifier, "--loss", "cross_entropy", "--classes", "5", "-o", "t.onnx")
    command = [sys.executable, "-m", "onward", "train", "t.onnx", "--data", str(photos), "--scale", "1/255"]
    command += ["-e", "100000", "-b", "16", "--inference", "tuned.onnx", "--log", "log.jsonl"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    log = tmp_path / "log.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 20) and time.monotonic() < deadline:
        time.sleep(0.05)

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "tuned.onnx" in errors
    assert "Traceback" not in errors
    assert evaluated(shell, "tuned.onnx", "--data", photos, "--scale", "1/255", "-m", "accuracy")["accuracy"] > 0.8


def test_the_advice_of_the_doctor_is_enough(shell: Shell, classifier: Path, tmp_path: Path, digits: Digits) -> None:
    """Journey 5: hold a file, ask the doctor, run what it says, word by word."""
    images, labels = digits
    np.savez(
        tmp_path / "mine.npz", images=images[labels < 5][:200, None] / np.float32(255), labels=labels[labels < 5][:200]
    )

    said = shell("doctor", classifier).stdout
    found = re.findall(r"(?<=onward )(?:make-trainable|train) .*", said)
    commands = [shlex.split(line, comments=True) for line in found]
    assert [c[0] for c in commands] == ["make-trainable", "train", "train"]
    for command in commands:
        shell(*["mine.npz" if word == "DATA" else word for word in command])


def test_only_a_gradient(shell: Shell, classifier: Path, tmp_path: Path, digits: Digits) -> None:
    """Journey 6: what in this picture makes it a three? A gradient of a published file, on stock ONNX Runtime."""
    images, labels = digits
    picture = images[labels == 3][:1, None] / np.float32(255)
    name = onnx.load(classifier).graph.input[0].name

    shell("grad", classifier, "--of", "probabilities", "--wrt", name, "-o", "grad.onnx")

    session = onnxruntime.InferenceSession(tmp_path / "grad.onnx", providers=["CPUExecutionProvider"])
    outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, {name: picture}), strict=True))
    forward = onnxruntime.InferenceSession(classifier, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(outputs["probabilities"], forward.run(None, {name: picture})[0], rtol=1e-5, atol=1e-6)
    assert outputs[f"grad/{name}"].shape == picture.shape
    assert np.abs(outputs[f"grad/{name}"]).max() < 1e-5  # the probabilities of all classes add up to one


def test_a_quantised_file(shell: Shell, classifier: Path, tmp_path: Path, photos: Path) -> None:
    """Journey 7: a file of 8-bit integers is trained and comes back as 8-bit integers."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(classifier, tmp_path / "q.onnx", weight_type=QuantType.QUInt8)
    options = ("--loss", "cross_entropy", "--dequantize", "--classes", "5")

    shell("make-trainable", "q.onnx", *options, "-o", "t.onnx")
    shell("train", "t.onnx", "--data", photos, "--output", "trained.onnx", *FIT)
    shell("strip", "trained.onnx", "--quantize", "-o", "tuned.onnx")

    stored = {numpy_helper.to_array(t).dtype.name for t in onnx.load(tmp_path / "tuned.onnx").graph.initializer}
    assert "uint8" in stored
    found = evaluated(shell, "tuned.onnx", "--data", photos, "--scale", "1/255", "-m", "accuracy")
    assert found["accuracy"] > 0.8


def test_a_scikit_learn_file(shell: Shell, tmp_path: Path) -> None:
    """Journey 8: a file of skl2onnx, whose first output is a label of strings, goes on learning from a table."""
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn import datasets, neural_network, pipeline, preprocessing

    iris = datasets.load_iris(as_frame=True)
    features, species = iris.data.astype("f"), iris.target_names[iris.target].astype(str)
    network = neural_network.MLPClassifier((8,), solver="sgd", learning_rate_init=0.02, max_iter=8, random_state=0)
    classifier = pipeline.make_pipeline(preprocessing.StandardScaler(), network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it was stopped early, on purpose
        classifier.fit(features.to_numpy(), species)
        proto = skl2onnx.to_onnx(classifier, features.to_numpy()[:1], options={"zipmap": False}, target_opset=18)
    onnx.save(proto, tmp_path / "sk.onnx")
    features.assign(species=species).to_csv(tmp_path / "iris.csv", index=False)
    table = ("--data", "iris.csv", "--target", "species")

    refused = shell(
        "make-trainable", "sk.onnx", "--loss", "cross_entropy", "--on", "probabilities", "-o", "t.onnx", code=1
    )
    assert re.search(r"--on \w+", refused.stderr)
    before = evaluated(shell, "sk.onnx", *table, "-m", "accuracy:probabilities")["accuracy:probabilities"]
    shell("train", "sk.onnx", *table, "-e", "30", "--lr", "0.02", "--report", "r.html", "--inference", "out.onnx", "-q")

    assert before < 0.9
    assert evaluated(shell, "out.onnx", *table, "-m", "accuracy")["accuracy"] > 0.93
    assert "confusion" in (tmp_path / "r.html").read_text().lower()
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    named = session.run(["label"], {session.get_inputs()[0].name: features.to_numpy()})[0]
    assert np.mean(named == species) > 0.93  # the names that the file gives agree with the classes that were learned


def test_in_phases(shell: Shell, classifier: Path, photos: Path, tmp_path: Path) -> None:
    """Journey 9: first the head, then everything, in one file and one run."""
    phases = ("--phase", "head=4@1e-2", "--phase", "*=4@1e-3")
    shell("make-trainable", classifier, "--loss", "cross_entropy", "--classes", "5", *phases, "-o", "t.onnx")

    shell(
        "train", "t.onnx", "--data", photos, "--scale", "1/255", "-b", "16", "-q", "--log", "log.jsonl", "-o", "o.onnx"
    )

    rates = [json.loads(line)["learning_rate"] for line in (tmp_path / "log.jsonl").read_text().splitlines()
             if "learning_rate" in line and '"epoch"' in line]  # fmt: skip
    assert {f"{rate:.3g}" for rate in rates} == {"0.01", "0.001"}
    assert evaluated(shell, "o.onnx", "--data", photos, "--scale", "1/255", "-m", "accuracy")["accuracy"] > 0.85


def test_a_program_without_onward(shell: Shell, classifier: Path, tmp_path: Path, digits: Digits) -> None:
    """Journey 10: compile, and train with numpy and ONNX Runtime alone, by the manifest."""
    images, labels = digits
    shell("make-trainable", classifier, "--loss", "cross_entropy", "--on", _logits(classifier), "-o", "t.onnx")
    shell("compile", "t.onnx", "-o", "program")
    script = tmp_path / "loop.py"
    script.write_text(
        """
import json, numpy, onnxruntime
from safetensors.numpy import load_file
manifest = json.load(open("program/manifest.json"))
step = manifest["graphs"]["step"]
session = onnxruntime.InferenceSession("program/" + step["file"], providers=["CPUExecutionProvider"])
state = load_file("program/state.safetensors")
data = numpy.load("mine.npz")
for _ in range(30):
    feeds = {}
    for value in step["inputs"]:
        name, role = value["name"], value["role"]
        feeds[name] = state[name] if role == "state" else (
            numpy.array(manifest["settings"][name]["default"], value["dtype"]) if role == "setting" else data[role])
    outputs = session.run(None, feeds)
    for value, array in zip(step["outputs"], outputs):
        if value["role"] == "state": state[value["replaces"]] = array
        if value["role"] == "loss": print(float(array))
"""
    )
    known = labels < 5
    np.savez(
        tmp_path / "mine.npz", data=images[known][:64, None] / np.float32(255), target=(labels[known][:64] + 1) % 5
    )

    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)

    losses = [float(line) for line in done.stdout.split()]
    assert len(losses) == 30
    assert losses[-1] < 0.5 * losses[0]


def _logits(classifier: Path) -> str:
    return next(n.input[0] for n in onnx.load(classifier).graph.node if n.op_type == "Softmax")


def test_from_pytorch_and_back(tmp_path: Path, digits: Digits) -> None:
    """Journey 11: a half-trained module goes on without PyTorch and comes back with the numbers of PyTorch alone."""
    torch = pytest.importorskip("torch")
    images, labels = digits
    x = torch.tensor(images[:256].reshape(256, -1) / np.float32(255))
    t = torch.tensor(labels[:256])

    def steps(module: object, optimizer: object, count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x), t).backward()
            optimizer.step()

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    steps(module, optimizer, 5)
    model = onward.from_torch(
        module, loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer, example_inputs=(x,), example_targets=t
    )
    trainer = onward.Trainer(model)
    for _ in range(10):
        trainer.step(dict(zip(trainer.input_names, (x.numpy(), t.numpy()), strict=True)))
    onward.save(trainer.to_model(), tmp_path / "later.onnx")
    back, back_optimizer = onward.to_torch(tmp_path / "later.onnx")
    steps(back, back_optimizer, 5)
    steps(module, optimizer, 15)

    with torch.no_grad():
        np.testing.assert_allclose(back(x).numpy(), module(x).numpy(), rtol=1e-4, atol=1e-4)
