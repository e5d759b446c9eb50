"""The board as one self-contained HTML page, in the style of `onward show --html`."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

import onnx

from onward.scoreboard.board import Board, Row

_LETTERS = {"passed": "p", "failed": "f", "skipped": "s"}


def render(board: Board) -> str:
    """Return the page: totals, operators, element types, failures with their messages, and changes."""
    text = json.dumps(_data(board), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    ours, shown = importlib.resources.files("onward.scoreboard"), importlib.resources.files("onward.show")
    page = (ours / "page.html").read_text(encoding="utf-8")
    for mark, content in (
        ("/*STYLE*/", (shown / "page.css").read_text(encoding="utf-8")),
        ("/*BOARD*/", (ours / "page.css").read_text(encoding="utf-8")),
        ("/*SCRIPT*/", (ours / "page.js").read_text(encoding="utf-8")),
        ("/*DATA*/", text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")),
    ):
        page = page.replace(mark, content)
    return page


def _data(board: Board) -> dict[str, Any]:
    """Return what the page draws: tests as rows, and of each backend one letter for each test."""
    return {
        "date": board.date,
        "onnx": onnx.__version__,
        "problems": board.problems,
        "parts": board.parts,
        "suites": board.suites,
        "tests": [[board.suites.index(t.suite), t.name, list(t.operators), list(t.dtypes)] for t in board.tests],
        "backends": [_backend(board, row) for row in board.rows],
        "trend": board.all_runs()[-60:],
    }


def _backend(board: Board, row: Row) -> dict[str, Any]:
    outcomes = [row.outcomes.get(t.id) for t in board.tests]
    positions = {t.id: i for i, t in enumerate(board.tests)}
    gained, lost = row.changes()
    return {
        "name": row.name,
        "backend": row.backend.rpartition("/")[2],
        "versions": row.versions,
        "date": row.date,
        "broken": row.broken,
        "compared": row.before is not None,
        "status": "".join("-" if o is None else _LETTERS[o.status] for o in outcomes),
        "messages": {str(i): o.message for i, o in enumerate(outcomes) if o is not None and o.message},
        "seconds": round(sum(o.seconds for o in outcomes if o is not None), 1),
        "gained": [positions[n] for n in gained if n in positions],
        "lost": [positions[n] for n in lost if n in positions],
    }
