"""Every Python example of the documentation runs unchanged, and so does every command of the README.

The blocks of a page run in their order, in one scope, in an empty folder. A page states what they need in
comments that are invisible to readers:

    <!-- prelude: net -->          run preludes.net() first: it writes files and returns names
    <!-- not run: the reason -->   leave out the next block
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contract import preludes
from onward.autodiff import registry
from onward.autodiff import rules as rules  # registered before a page adds its own
from onward.cli import build_app

ROOT = Path(__file__).parents[2]
PAGES = {str(p.relative_to(ROOT)): p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
# Pages whose `onward …` lines run too: those whose commands work on the files of their prelude.
WITH_COMMANDS = ("README.md", "docs/authoring.md", "docs/finetuning.md", "docs/heads.md", "docs/predict.md",
                 "docs/tasks/images.md", "docs/tasks/tables.md", "docs/tasks/text.md")  # fmt: skip

_PARTS = re.compile(
    r"<!-- prelude: (?P<prelude>\w+) -->|<!-- not run:(?P<reason>.*?)-->|^```(?P<language>\w*)\n(?P<block>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def run_page(text: str, name: str, *, commands: bool = False) -> int:
    """Run the examples of a page in the current folder and return how many ran."""
    scope: dict[str, object] = {"__name__": "example"}
    ran = 0
    left_out = False
    for part in _PARTS.finditer(text):
        line = text.count("\n", 0, part.start())
        if part["prelude"]:
            scope.update(getattr(preludes, part["prelude"])())
        elif part["reason"] is not None:
            assert part["reason"].strip(), f"{name}, line {line + 1}: say why the example is not run"
            left_out = True
        elif left_out:
            left_out = False
        elif part["language"] == "python":
            run_python(part["block"], name, line + 1, scope)
            ran += 1
        elif part["language"] == "" and commands:
            ran += run_commands(part["block"])
    return ran


def run_python(block: str, name: str, line: int, scope: dict[str, object]) -> None:
    if ">>>" in block:
        test = doctest.DocTestParser().get_doctest(block, scope, name, name, line)
        output: list[str] = []
        failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
            test, out=output.append, clear_globs=False
        )
        scope.update(test.globs)
        assert not failed.failed, "".join(output)
    else:
        exec(compile("\n" * line + block, name, "exec"), scope)  # the line of the page, in a traceback


def run_commands(block: str) -> int:
    """Run the lines that start with `onward` and return how many there are."""
    lines = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("onward ")]
    for line in lines:
        result = CliRunner().invoke(build_app(), shlex.split(line, comments=True)[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
    return len(lines)


@pytest.fixture
def clean_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to work in; rules that an example registers are forgotten."""
    monkeypatch.chdir(tmp_path)
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


@pytest.mark.usefixtures("clean_folder")
@pytest.mark.parametrize("name", [n for n, p in PAGES.items() if "```python" in p.read_text(encoding="utf-8")])
def test_the_examples_of_a_page_run(name: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        ran = run_page(PAGES[name].read_text(encoding="utf-8"), name, commands=name in WITH_COMMANDS)

    assert ran


@pytest.mark.usefixtures("clean_folder")
@pytest.mark.parametrize(
    "page",
    [
        "```python\nassert False\n```\n",
        "```python\n>>> 1 + 1\n3\n```\n",
        "<!-- prelude: no_such -->\n",
        "<!-- not run: -->\n```python\nassert False\n```\n",
        "```\nonward check no_such_file.onnx\n```\n",
    ],
    ids=["assertion", "doctest", "unknown prelude", "no reason", "command"],
)
def test_an_example_that_is_wrong_fails(page: str) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        run_page(page, "page", commands=True)


@pytest.mark.usefixtures("clean_folder")
def test_an_example_that_is_left_out_does_not_run() -> None:
    page = "<!-- not run: it needs a browser -->\n```python\nassert False\n```\n```python\nx = 1\n```\n"

    assert run_page(page, "page") == 1
