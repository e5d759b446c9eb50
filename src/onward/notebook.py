"""Small pieces of HTML for notebooks: tables that follow the colours of the page, light or dark. No script, no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = (
    "<style>.onward{font:13px/1.45 system-ui,-apple-system,'Segoe UI',sans-serif;max-width:60em}"
    ".onward table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.3em 0}"
    ".onward th,.onward td{padding:.2em .8em;border-bottom:1px solid rgba(128,128,128,.3);text-align:left;"
    "vertical-align:top}.onward td.n,.onward th.n{text-align:right}.onward .soft{opacity:.65}"
    ".onward .error{color:#d1333f}.onward .warning{color:#b86e00}.onward .note{color:#2563c9}"
    ".onward svg{max-width:100%;height:auto}.onward .sideways{overflow-x:auto}"
    ".onward .good{color:#1b8a5a}.onward progress{width:16em;vertical-align:middle}</style>"
)


def panel(title: str, *parts: str) -> str:
    """Return a titled block of HTML for a notebook; empty parts are left out.

    >>> "<b>m &lt; n</b>" in panel("m < n")
    True
    """
    return f'<div class="onward">{_STYLE}<b>{escape(title)}</b>{"".join(p for p in parts if p)}</div>'


def facts(rows: Mapping[str, object]) -> str:
    """Return a table of names and values; rows without a value are left out."""
    cells = "".join(
        f'<tr><th class="soft">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in rows.items()
        if value not in ("", None)
    )
    return f"<table>{cells}</table>"


def grid(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None, note: str = "") -> str:
    """Return a table with one line per row, numbers on the right."""
    names = list(columns) if columns is not None else list(dict.fromkeys(key for row in rows for key in row))
    numeric = {n for n in names if all(isinstance(r.get(n), (int, float, type(None))) for r in rows)}
    head = "".join(f'<th class="{"n" if n in numeric else ""}">{escape(n)}</th>' for n in names)
    body = "".join(
        "<tr>" + "".join(f'<td class="{"n" if n in numeric else ""}">{cell(row.get(n))}</td>' for n in names) + "</tr>"
        for row in rows
    )
    caption = f'<div class="soft">{escape(note)}</div>' if note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="sideways">{table}</div>{caption}'


def cell(value: object) -> str:
    """Return a value as the text of a cell.

    >>> cell(0.123456), cell(None), cell("a < b"), cell(12)
    ('0.1235', '', 'a &lt; b', '12')
    """
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
