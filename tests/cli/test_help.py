"""The help: quick to print, in words, and with examples that run."""

from __future__ import annotations

import re
import shlex
import socketserver
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from contract import preludes
from onward import web
from onward.cli import COMMANDS, build_app
from onward.cli.help import examples

HEAVY = {"google.protobuf", "ml_dtypes", "numba", "numpy", "onnx", "onnx_ir", "onnxruntime", "sympy", "torch"}


@pytest.fixture(scope="module")
def commands() -> dict:
    return get_command(build_app()).commands


def test_help_loads_nothing_heavy() -> None:
    """What costs time at the start is imports: with numpy, onnx and sympy a help page took a second."""
    program = f"""
import sys
from typer.testing import CliRunner
from onward.cli import COMMANDS, build_app
for command in (None, *COMMANDS):
    result = CliRunner().invoke(build_app(), ["--help"] if command is None else [command, "--help"])
    assert result.exit_code == 0, (command, result.output)
    loaded = sorted(set(sys.modules) & {HEAVY!r})
    assert not loaded, (command, loaded)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_list_of_commands_loads_no_command_and_no_reader_of_markdown() -> None:
    """They took half of its time."""
    program = """
import sys
from onward.cli import main
sys.argv = ["onward", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
loaded = {"markdown_it", "pygments", "typer.rich_utils", "onward.cli.train", "onward.cli.check"} & set(sys.modules)
assert not loaded, loaded
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert all(f" {command} " in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_help_of_a_command_ends_with_two_examples(command: str, commands: dict) -> None:
    printed = CliRunner().invoke(build_app(), [command, "--help"], env={"COLUMNS": "200"}).stdout

    last = printed.rstrip().splitlines()[-3:]
    assert [line.strip() for line in last] == ["Examples:", *examples(commands[command].callback)]
    assert all(line.strip().startswith(f"onward {command}") for line in last[1:])


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["ops", "--help"], ["trian"]])
def test_an_app_for_one_command_says_the_same(words: list[str]) -> None:
    asked = "" if words == ["--help"] else words[0]

    whole, one = (CliRunner().invoke(app, words, prog_name="onward") for app in (build_app(), build_app(asked)))

    assert (one.exit_code, one.output) == (whole.exit_code, whole.output)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_kinds_of_values_are_words(command: str, commands: dict) -> None:
    printed = CliRunner().invoke(build_app(), [command, "--help"], env={"COLUMNS": "200"}).stdout

    assert not re.search(r"<(str|int|float|bool|path|list\[.*?\])>|\b(INTEGER|TEXT|FLOAT|PATH|BOOLEAN)\b", printed)
    for parameter in commands[command].params:
        assert parameter.metavar == "" if getattr(parameter, "is_flag", False) else parameter.metavar


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_examples_run(command: str, commands: dict, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    preludes.readme() if command == "train" else preludes.net()
    if command == "convert":
        preludes.keras_file()
    if command == "web":  # without npm, and without a server that goes on for ever
        monkeypatch.setattr(web, "fetch_runtime", lambda: web.Runtime("0.0.0", b"export {};\n", b"\0asm"))
        monkeypatch.setattr(web, "serve", lambda directory, port, serve=web.serve: serve(directory, 0))
        monkeypatch.setattr(socketserver.BaseServer, "serve_forever", lambda server: None)
    run = CliRunner()
    ready = ["make-trainable net.onnx --loss cross_entropy --set ema=0.9 -o net.train.onnx"]
    ready += ["train net.train.onnx --data digits.npz --checkpoint run/ --quiet"] * (command == "evaluate")
    ready += ["export net.train.onnx --mlir onnx -o net.mlir"] * (command == "import")
    for line in ready:
        assert run.invoke(build_app(), shlex.split(line), catch_exceptions=False).exit_code == 0

    for line in examples(commands[command].callback):
        program, *arguments = shlex.split(line)
        result = run.invoke(build_app(), arguments, catch_exceptions=False)

        assert program == "onward"
        assert result.exit_code == 0, result.output
