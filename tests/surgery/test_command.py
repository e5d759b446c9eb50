"""A new head at the command line: options, what is printed, and errors in the language of the options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.model.class_names import class_names
from surgery.networks import network

MODEL = network(
    "c = Conv(x, K, k) r = Relu(c) g = GlobalAveragePool(r) f = Flatten(g) z = Gemm(f, W, b) y = Softmax(z)",
    {"K": (5, 3, 1, 1), "k": (5,), "W": (5, 4), "b": (4,)},
    "float[N, 3, 5, 5] x",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(MODEL, "net.onnx")
    Path("cats.txt").write_text("lion\ntiger\nlynx\n")


def command(*arguments: str) -> str:
    result = CliRunner().invoke(
        build_app(), ["make-trainable", "net.onnx", "--loss", "cross_entropy", "-o", "out.onnx", *arguments]
    )
    assert result.exit_code == 0, f"{result.output}\n{result.exception}"
    return result.output


@pytest.mark.parametrize(
    ("given", "names"), [("3", ()), ("cats.txt", ("lion", "tiger", "lynx")), ("a,b, c", ("a", "b", "c"))]
)
def test_classes_by_number_file_or_names(given: str, names: tuple[str, ...]) -> None:
    printed = command("--classes", given, "--train", "head")

    assert "new head: Gemm `z` with 4 classes (weight [5, 4]) became one with 3; output `y` is [N, 3]" in printed
    model = onward.load("out.onnx")
    assert class_names(model) == names
    assert list(model.parameters) == ["W", "b"]


def test_cut_and_head(tmp_path: Path) -> None:
    head = network("p = MatMul(a, H) q = Softmax(p)", {"H": (5, 2)}, "float[M, 5] a", "float[M, 2] q")
    onnx.save(head, "head.onnx")

    assert "a linear layer with 2 classes and 5 features reads `g`" in command("--classes", "2", "--cut", "g")
    assert "the given head reads `f` [N, 5]" in command("--head", "head.onnx", "--train", "head")
    assert list(onward.load("out.onnx").parameters) == ["H"]


def test_batch_normalisation_is_recovered_with_data() -> None:
    np.save("images.npy", np.random.default_rng(0).standard_normal((16, 3, 5, 5)).astype(np.float32))

    command("--batch-norm", "recover", "--calibration", "images.npy", "--on", "z")

    assert "K.bn.weight" in onward.load("out.onnx").parameters


def test_the_fine_tuned_file_ends_in_softmax_and_evaluate_names_the_classes() -> None:
    command("--classes", "cats.txt")
    random = np.random.default_rng(0)
    np.savez("data.npz", x=random.standard_normal((30, 3, 5, 5)).astype(np.float32), labels=np.arange(30) % 3)
    trained = CliRunner().invoke(
        build_app(),
        ["train", "out.onnx", "--data", "data.npz", "-o", "trained.onnx", "--inference", "tuned.onnx", "-q"],
    )
    assert trained.exit_code == 0, f"{trained.output}\n{trained.exception}"

    shown = CliRunner().invoke(build_app(), ["evaluate", "trained.onnx", "--data", "data.npz", "-m", "confusion"])

    assert onnx.load("tuned.onnx").graph.node[-1].op_type == "Softmax"
    assert class_names(onward.load("tuned.onnx")) == ("lion", "tiger", "lynx")
    assert "lynx" in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes", "casts.txt"], "no file `casts.txt`"),
        (["--classes", "0"], "at least one class"),
        (["--classes", "3", "--train", "last:7"], "fewer than 7 layers"),
        (["--classes", "3", "--cut", "nothing"], "no such value"),
        (["--classes", "3", "--head", "no.onnx"], "no.onnx"),
        (["--batch-norm", "recover", "--calibration", "no.npy"], "there is no `no.npy`"),
    ],
)
def test_a_mistake_is_an_error_and_no_file_is_written(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(
        build_app(), ["make-trainable", "net.onnx", "--loss", "cross_entropy", "-o", "out.onnx", *arguments]
    )

    assert isinstance(result.exception, onward.OnwardError)
    assert message in str(result.exception)
    assert not Path("out.onnx").exists()
