"""The `Report` of the checker, the collector that fills it, and the page of codes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from html import escape
from typing import Any

from onward import notebook
from onward.arguments import nearest
from onward.errors import CheckFailed, Diagnostic, Severity, catalogue, counted

_LONGEST_NAME = 120
_NEAR_LOOKUPS = 50  # near names are optional: after this many lookups, misspelt names are not the cause
_NEAR_CANDIDATES = 5000


def quote(name: str) -> str:
    """Return `name` in backquotes, short enough to read and without control characters.

    >>> quote("W")
    '`W`'
    >>> quote("a" + chr(27) + "[31m")
    '`a\\\\x1b[31m`'
    """
    if len(name) > _LONGEST_NAME:
        name = name[:_LONGEST_NAME] + "…"
    if not name.isprintable():
        name = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return f"`{name}`"


def listing(names: Iterable[str], limit: int = 8) -> str:
    """Return names in backquotes, joined by commas; the rest is counted.

    >>> listing(["a", "b"])
    '`a`, `b`'
    >>> listing("abcdefghij")
    '`a`, `b`, `c`, `d`, `e`, `f`, `g`, `h` and 2 more'
    """
    names = list(names)
    if not names:
        return "(none)"
    text = ", ".join(quote(n) for n in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"


class Findings:
    """Collects diagnostics while the checks run."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []
        self._near_lookups = 0

    def error(self, code: str, message: str, **fields: str) -> None:
        self.found.append(Diagnostic(code, message, severity=Severity.ERROR, **fields))

    def warning(self, code: str, message: str, **fields: str) -> None:
        self.found.append(Diagnostic(code, message, severity=Severity.WARNING, **fields))

    def note(self, code: str, message: str, **fields: str) -> None:
        self.found.append(Diagnostic(code, message, severity=Severity.NOTE, **fields))

    def has_errors(self) -> bool:
        return any(d.severity is Severity.ERROR for d in self.found)

    def near(self, name: str, candidates: Iterable[str]) -> str:
        """Return "did you mean …?" for the candidates nearest to `name`, or "" if none is near."""
        if self._near_lookups >= _NEAR_LOOKUPS or not name:
            return ""
        self._near_lookups += 1
        pool = [c for c, _ in zip((c for c in candidates if c and c != name), range(_NEAR_CANDIDATES), strict=False)]
        folded = [c for c in pool if c.casefold() == name.casefold()]
        matches = folded or nearest(name[:_LONGEST_NAME], pool, cutoff=0.6)
        return f"did you mean {' or '.join(quote(m) for m in matches)}?" if matches else ""


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that `onward.check` found, in the order of the file.

    `ok` is True if nothing violates the standard; warnings and notes do not change it.
    """

    findings: tuple[Diagnostic, ...] = ()
    source: str = ""

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.findings if d.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.findings if d.severity is Severity.WARNING)

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.findings if d.severity is Severity.NOTE)

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the code of each finding, in order."""
        return tuple(d.code for d in self.findings)

    @property
    def ok(self) -> bool:
        return not self.errors

    def summary(self) -> str:
        """Return the number of findings in one line.

        >>> Report(source="m.onnx").summary()
        'm.onnx: no problems found'
        """
        counts = [
            counted(len(found), word)
            for word, found in (("error", self.errors), ("warning", self.warnings), ("note", self.notes))
            if found
        ]
        return f"{self.source or 'model'}: {', '.join(counts) if counts else 'no problems found'}"

    def render(self) -> str:
        """Return the report as plain text: the findings, separated by blank lines, and their number."""
        return "\n\n".join([*(d.render() for d in self.findings), self.summary()])

    def _repr_html_(self) -> str:
        rows = [
            f'<tr><td class="{d.severity.value}">{d.code}</td><td><b>{escape(d.message)}</b>'
            + "".join(
                f'<br><span class="soft">{word}</span> {escape(text)}'
                for word, text in (("at", d.place), ("found:", d.found), ("needed:", d.needed), ("hint:", d.hint))
                if text
            )
            + "</td></tr>"
            for d in self.findings
        ]
        return notebook.panel(self.summary(), f"<table>{''.join(rows)}</table>" if rows else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, as `--json` prints it."""
        return {
            "format": 1,
            "source": self.source,
            "ok": self.ok,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "notes": len(self.notes),
            "findings": [d.as_dict() for d in self.findings],
        }

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(self.as_dict(), indent=2)  # in ASCII, for every terminal and pipe

    def raise_if_errors(self) -> Report:
        """Return the report itself, or raise.

        Raises:
            CheckFailed: the model violates the standard; contains every error.
        """
        if self.errors:
            raise CheckFailed(self.errors)
        return self


def render_codes_page() -> str:
    """Return the Markdown page that explains every diagnostic code of Onward (docs/codes.md)."""
    families = {
        "A": "Arguments",
        "B": "Backends",
        "C": "Checking a model",
        "D": "Differentiation",
        "E": "Optional packages",
        "K": "Checkpoints",
        "M": "Reading and writing models",
        "N": "Numbers that are not finite",
        "T": "Training data",
    }
    lines = [
        "# Diagnostic codes",
        "",
        "Generated from the catalogue `src/onward/codes.json`; do not edit by hand.",
        "`onward check --explain CODE` prints the same text. Rule numbers of the checker: C101 to C123 are the rules",
        "1 to 23 of the checker of training models (docs/check.md), C13x to C16x the conditions for every ONNX graph,",
        "C2xx the `Gradient` operator, C3xx the optimizer operators, C4xx types and shapes, C5xx safety.",
    ]
    codes = catalogue()
    for family in sorted({code[0] for code in codes}):
        lines += ["", f"## {family}: {families.get(family, 'Other')}"]
        for code in sorted(c for c in codes if c[0] == family):
            entry = codes[code]
            lines += ["", f"### {code}: {entry.title}", "", entry.why, "", f"**Fix.** {entry.fix}"]
    return "\n".join(lines) + "\n"
