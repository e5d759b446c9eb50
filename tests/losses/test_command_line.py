"""The losses of the trade at the command line: their names, settings and mistakes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from author.test_teacher import network
from onward.cli import main

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(network(5, 1), "net.onnx")
    onnx.save(network(32, 2), "big.onnx")
    np.save("anchors.npy", np.ones((2, 4)))
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch, capsys) -> Run:
    """Run the program in this process; return the exit code, and all that a terminal shows."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run_(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["onward", "make-trainable", "net.onnx", "-o", "out.onnx", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run_


def test_settings_reach_the_loss(run: Run) -> None:
    code, text = run("--loss", "focal", "--set-loss", "gamma=1.5", "--set-loss", "alpha=[1, 2, 1]")

    assert code == 0, text
    loss = onward.load("out.onnx").entries[0].algorithm.metadata_props["onward.loss"]
    assert "gamma=1.5" in loss
    assert "alpha=[1, 2, 1]" in loss


def test_a_teacher_is_an_option(run: Run) -> None:
    code, text = run("--loss", "distillation", "--teacher", "big.onnx", "--set-loss", "temperature=2")

    assert code == 0, text
    assert "teacher/W1" in onward.load("out.onnx").entries[0].algorithm.initializers


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--loss", "ssd"], ["needs the setting `anchors`", "at --loss", "--set-loss anchors=…"]),
        (["--loss", "focal", "--set-loss", "gama=1"], ["no such setting `gama`", "did you mean `gamma`?"]),
        (["--loss", "distillation"], ["error[A140]", "at --teacher", "pass --teacher big.onnx"]),
        (["--loss", "mse", "--teacher", "big.onnx"], ["no loss reads the teacher", "pass --loss distillation"]),
        (["--loss", "mine.onnx", "--set-loss", "a=1"], ["a loss that is a file has no settings", "at --set-loss"]),
        (["--loss", "ssd", "--set-loss", "anchors=gone.npy"], ["`anchors` of `SSD` cannot be read"]),
        (["--loss", "ssd", "--set-loss", "anchors=anchors.npy"], ["`SSD` reads 2 outputs", "at --on"]),
    ],
)
def test_a_mistake_is_said_in_options_and_writes_nothing(run: Run, arguments: list[str], words: list[str]) -> None:
    code, text = run(*arguments)

    assert code != 0
    assert "Traceback" not in text
    assert not [word for word in words if word not in text], text
    assert not Path("out.onnx").exists()
