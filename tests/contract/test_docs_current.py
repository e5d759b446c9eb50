"""The documentation is up to date with the code: generated texts, and the decisions that the code cites."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs/decisions"
_CITATION = re.compile(r"\bdecisions?\s+(\d+(?:(?:,| and|, and) \d+)*)", re.IGNORECASE)


def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return docs/generate.py as a module."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds to it
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cited(text: str) -> set[int]:
    """Return the numbers of the decisions that a text cites."""
    return {int(number) for group in _CITATION.findall(text) for number in re.findall(r"\d+", group)}


def recorded() -> set[int]:
    """Return the numbers that docs/decisions/README.md has a record of."""
    return {int(n) for n in re.findall(r"^\| (\d+) \|", (DECISIONS / "README.md").read_text("utf-8"), re.MULTILINE)}


def test_the_order_of_the_folders_in_contributing_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    page = generator(monkeypatch).contributing_page()

    assert page == (ROOT / "CONTRIBUTING.md").read_text("utf-8"), "run `python docs/generate.py`"


def test_the_page_of_core_operators_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    page = generator(monkeypatch).core_page()

    assert page == (ROOT / "docs/core_operators.md").read_text("utf-8"), "run `python docs/generate.py`"


def test_the_page_of_mlir_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    page = generator(monkeypatch).mlir_page()

    assert page == (ROOT / "docs/mlir.md").read_text("utf-8"), "run `python docs/generate.py`"


def test_every_decision_that_is_cited_has_a_record() -> None:
    files = [
        p for d in ("src", "tests", "docs") for p in (ROOT / d).rglob("*.*") if p.suffix in (".py", ".md", ".toml")
    ]
    missing = {
        str(path.relative_to(ROOT)): sorted(numbers)
        for path in files
        if (numbers := cited(path.read_text("utf-8")) - recorded())
    }

    assert not missing, "add them to docs/decisions/README.md"


def test_every_record_is_in_the_index() -> None:
    index = (DECISIONS / "README.md").read_text("utf-8")

    assert not [p.name for p in DECISIONS.glob("*.md") if p.name != "README.md" and f"({p.name})" not in index]


def test_citations_are_read_in_every_form() -> None:
    text = "(CITE 2), CITEs 6 and 9, CITEs 101, 103 and 112; a CITE of 40 people".replace("CITE", "decision")

    assert cited(text) == {2, 6, 9, 101, 103, 112}
