"""docs/questions_2019.md: every file and function that it names exists, and its mapping is up to date."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from contract.test_docs_current import generator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/questions_2019.md"
ROWS = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ") and ".py`: `" in line]
PLACES = sorted(
    {
        (file, name)
        for row in ROWS
        for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", row)
        for name in re.findall(r"`([\w.]+)`", names)
    }
)


def defined(path: Path) -> set[str]:
    """Return the names of all classes, functions and methods of a file."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_every_question_names_a_place() -> None:
    assert len(ROWS) == 4 + 12
    assert len(PLACES) >= 16


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_the_place_exists(file: str, name: str) -> None:
    assert name in defined(ROOT / "src/onward" / file)


def test_the_mapping_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    page = generator(monkeypatch).questions_page()

    assert page == PAGE.read_text("utf-8"), "run `python docs/generate.py`"
