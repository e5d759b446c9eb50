"""One spelling for one thing in every command, and output that a pipe gets whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from onward import samples
from onward.cli import COMMANDS, build_app
from onward.model import serde


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in a folder that has digits.onnx (training) and net.onnx (inference)."""
    monkeypatch.chdir(tmp_path)
    serde.save(samples.build("digits"), "digits.onnx")
    serde.save(samples.digits_network(), "net.onnx")
    return lambda *arguments, **environment: CliRunner().invoke(
        build_app(), list(arguments), env=environment, catch_exceptions=False
    )


def options(command: str) -> dict[str, list[str]]:
    """The options of a command, by what they are called in the code."""
    return {p.name: [*p.opts, *p.secondary_opts] for p in get_command(build_app()).commands[command].params}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_file_to_write_is_o_and_output_in_every_command(command: str) -> None:
    found = options(command)

    assert found.get("output", ["-o", "--output"]) == ["-o", "--output"]
    assert not any({"--out", "-o", "--output"} & set(names) for name, names in found.items() if name != "output")


def test_the_moving_average_is_average_in_every_command() -> None:
    assert options("train")["average"] == options("strip")["average"] == ["--average"]


def test_make_trainable_takes_what_the_loss_reads_as_on(run) -> None:
    result = run("make-trainable", "net.onnx", "--loss", "cross_entropy", "--on", "logits", "-o", "out.onnx")

    assert result.exit_code == 0, result.output
    assert serde.load("out.onnx").targets == ["labels"]


@pytest.mark.parametrize("command", ["ops", "show digits.onnx --all", "compile digits.onnx -o p"])
def test_a_pipe_gets_every_line_whole(run, command: str) -> None:
    narrow = run(*command.split(), COLUMNS="40").stdout
    piped = run(*command.split()).stdout

    assert max(map(len, narrow.splitlines())) <= 40
    assert "…" not in piped
    assert piped.count("\n") < narrow.count("\n")
    assert max(map(len, piped.splitlines())) < 1000  # nothing is padded to a width of its own


def test_a_count_of_one_has_no_plural(run) -> None:
    printed = run("sample", "linear", "-o", "l.onnx").stdout
    printed += run(
        "make-trainable", "net.onnx", "--loss", "cross_entropy", "--train", "fc2.bias", "-o", "t.onnx"
    ).stdout
    printed += run("strip", "t.onnx", "-o", "i.onnx").stdout
    printed += run("ops", "LayerNormalization").stdout

    assert "1 parameter to train" in printed
    assert "1 parameter (10 numbers) to train" in printed
    assert "1 training entry" in printed
    assert re.findall(r"\b1 \w+s\b", printed) == []


def test_a_program_without_training_says_what_it_is(run) -> None:
    printed = run("compile", "net.onnx", "-o", "program").stdout

    readme = Path("program/README.md").read_text(encoding="utf-8")
    assert "inference only: `net.onnx` has no training information" in printed
    assert "README" not in printed
    assert "`infer.onnx`" in readme
    assert "step.onnx" not in readme


def test_explain_of_a_word_names_the_codes_about_it(run) -> None:
    result = run("check", "--explain", "recursive")

    assert result.exit_code == 2
    assert "did you mean C144 (recursive function)?" in result.stderr


def test_explain_of_nonsense_does_not_list_every_code(run) -> None:
    result = run("check", "--explain", "NOPE")

    assert result.exit_code == 2
    assert len(result.stderr) < 400
    assert "such as C105" in result.stderr


def test_strip_of_a_model_without_training_says_so(run) -> None:
    printed = run("strip", "net.onnx", "-o", "same.onnx").stdout

    assert "no training information" in printed
    assert onnx.load("same.onnx").graph == onnx.load("net.onnx").graph
