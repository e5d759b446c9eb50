"""The program as a stranger meets it: pipes that close, full disks, Ctrl-C, other encodings, wrong arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.core import TyperCommand

from onward import samples
from onward.cli import main
from onward.model import serde

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """A folder that has digits.onnx (training), net.onnx (inference) and text.onnx (no model)."""
    serde.save(samples.build("digits"), tmp_path / "digits.onnx")
    serde.save(samples.digits_network(), tmp_path / "net.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    return tmp_path


@pytest.fixture
def run_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run the program in this process, which is quicker than a process of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(command: str) -> None:
        monkeypatch.setattr(sys, "argv", ["onward", *command.split()])
        main()

    return run


@pytest.fixture
def start(folder: Path) -> Start:
    """Start the program in a process of its own."""

    def start_(command: str, stdout: object = subprocess.PIPE, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "onward", *command.split()], cwd=folder, stdout=stdout, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **environment},
        )  # fmt: skip

    return start_


@pytest.mark.parametrize(
    ("command", "code"), [("show digits.onnx --graph", 0), ("show digits.onnx --json", 0), ("check broken.onnx", 1)]
)
def test_a_reader_that_leaves_changes_no_exit_code_and_prints_nothing(
    start: Start, tmp_path: Path, command: str, code: int
) -> None:
    proto = samples.build("digits").proto()
    proto.training_info[0].update_binding[0].key = "nobody"
    (tmp_path / "broken.onnx").write_bytes(proto.SerializeToString())
    with start(command) as program:
        program.stdout.close()

        errors = program.stderr.read()

    assert errors == ""
    assert program.returncode == code


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a file of Linux")
def test_a_full_disk_behind_stdout_is_one_line(start: Start) -> None:
    with open("/dev/full", "w") as full:
        program = start("ops", stdout=full)
        _, errors = program.communicate()

    assert errors == "error: cannot print the result: No space left on device\n"
    assert program.returncode == 1


@pytest.mark.parametrize("moment", ["parse_args", "invoke"])
def test_ctrl_c_is_one_word_and_130(
    run_here: Callable[[str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The signal comes here at a known moment; tests/train/test_stopping.py sends it to a program that trains."""

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TyperCommand, moment, interrupted)

    with pytest.raises(SystemExit) as left:
        run_here("ops --json")

    assert (left.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_a_terminal_without_unicode_shows_the_rest(start: Start) -> None:
    printed, errors = start("show digits.onnx", PYTHONIOENCODING="ascii").communicate()

    assert r"8\xd78 digits" in printed
    assert errors == ""


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("make-trainable net.onnx --loss cross_entropy --train x* -o o.onnx", 1, "at --train\n"),
        ("make-trainable net.onnx --loss cross_entropy --on logit -o o.onnx", 1, "at --on\n"),
        ("make-trainable net.onnx --loss cross_entropy --set emma=1 -o o.onnx", 1, "did you mean `ema`?"),
        ("make-trainable digits.onnx --loss cross_entropy -o o.onnx", 1, "remove them with onward strip\n"),
        ("strip net.onnx --average -o o.onnx", 1, "at --average\n"),
        ("train digits.onnx --data d.npz --set-backend fusd=True", 1, "did you mean `fused`?"),
        ("train digits.onnx --data d.npz --set-backend fused", 1, "at --set-backend\n"),
        ("sample linear -o nowhere/m.onnx", 2, "there is no directory `nowhere`"),
        ("compile digits.onnx -o text.onnx", 2, "`text.onnx` is a file"),
        ("show text.onnx", 2, "this is not an ONNX model"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_the_command_line(
    run_here: Callable[[str], None], capsys: pytest.CaptureFixture[str], command: str, code: int, told: str
) -> None:
    with pytest.raises(SystemExit) as left:
        run_here(command)

    printed = capsys.readouterr()
    assert left.value.code == code
    assert told in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("train digits.onnx --data digit.npz", "did you mean `digits.npz`"),
        ("train digits.onnx --data digits.npz", "did you mean `image`? --column images=image reads it"),
        ("train digits.onnx --data digits.npz --column image=image", "--column names `image`"),
        ("train digits.onnx --data digits.npz --column image=image", "did you mean `images`?"),
        ("train digits.onnx --data table.csv", "name it: --column labels=labelz"),
        ("train digits.onnx --data table.csv --column labels=labls", "did you mean `labelz`?"),
        ("train digits.onnx --data digits.npz --column images=image --metric acuracy", "did you mean `accuracy`"),
        ("train digits.onnx --data digits.npz --backend onnxruntme", "did you mean `onnxruntime`?"),
        ("train digits.onnx --data digits.npz --on-nan stpo", "did you mean `stop`"),
        ("show digit.onnx", "did you mean `digits.onnx`"),
        ("make-trainable net.onnx --loss cross_entorpy -o o.onnx", "did you mean `cross_entropy`?"),
        ("make-trainable net.onnx --loss mse --optimizer adamm -o o.onnx", "did you mean `adam`"),
        ("make-trainable net.onnx --loss mse --set-loss reduction=summ -o o.onnx", "did you mean `sum`?"),
        ("make-trainable net.onnx --loss mse --initialize hee -o o.onnx", "did you mean `he`"),
        ("grad net.onnx --of logit --wrt images -o o.onnx", "--of names `logit`"),
        ("sample mnst", "did you mean `mnist`?"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_right_one(
    run_here: Callable[[str], None], capsys: pytest.CaptureFixture[str], folder: Path, command: str, told: str
) -> None:
    rng = np.random.default_rng(0)
    np.savez(folder / "digits.npz", image=rng.random((4, 1, 8, 8), np.float32), labels=rng.integers(0, 10, 4))
    (folder / "table.csv").write_text("a,b,labelz\n1,2,3\n")
    with pytest.raises(SystemExit):
        run_here(command)

    assert told in capsys.readouterr().err
