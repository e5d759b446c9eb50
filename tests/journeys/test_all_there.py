"""The thirteen journeys of a new user are all there, each once, in words."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def test_the_thirteen_journeys_are_all_there() -> None:
    found: list[int] = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        tests = [n for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, ast.FunctionDef)]
        docstrings = [ast.get_docstring(t) or "" for t in tests if t.name.startswith("test_")]
        found += [int(m[1]) for text in docstrings if (m := re.match(r"Journey (\d+): .+", text))]

    assert sorted(found) == list(range(1, 14))
