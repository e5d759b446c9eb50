"""The results of a board as data: totals, changes since the last run, and the files that others read."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx

from onward.scoreboard.pool import Contestant, Outcome, Run
from onward.scoreboard.tests import KINDS, BoardTest
from onward.storage.atomic import write_atomic

FORMAT = 1
RESULTS, PAGE, TREND = "results.json", "index.html", "trend.json"
STATUSES = ("passed", "failed", "skipped")
# The names under which onnx's test runner shows these tests.
_CLASSES = {
    "node": "OnnxBackendNodeModelTest",
    "simple": "OnnxBackendSimpleModelTest",
    "pytorch-converted": "OnnxBackendPyTorchConvertedModelTest",
    "pytorch-operator": "OnnxBackendPyTorchOperatorModelTest",
    "real": "OnnxBackendRealModelTest",
}


@dataclasses.dataclass
class Row:
    """One backend on the board."""

    name: str
    backend: str
    versions: dict[str, str]
    broken: str
    date: str
    outcomes: dict[str, Outcome]
    before: dict[str, str] | None = None  # the status of each test in the last run

    def counts(self, tests: Iterable[BoardTest]) -> collections.Counter[str]:
        """Return how many of the tests passed, failed and were skipped; those that did not run have no status."""
        return collections.Counter(self.outcomes[t.id].status for t in tests if t.id in self.outcomes)

    def changes(self) -> tuple[list[str], list[str]]:
        """Return the tests that pass now and did not before, and those that do not pass any more."""
        now = {name: o.status for name, o in self.outcomes.items() if self.before and name in self.before}
        before = self.before or {}
        gained = sorted(n for n, status in now.items() if status == "passed" != before[n])
        return gained, sorted(n for n, status in now.items() if status != "passed" == before[n])


@dataclasses.dataclass
class Board:
    """All rows, and the tests that they are about."""

    tests: list[BoardTest]
    rows: list[Row]
    date: str
    trend: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)  # of the suite itself
    parts: list[str] = dataclasses.field(default_factory=list)  # what was chosen, if not all tests were

    @property
    def suites(self) -> list[str]:
        """The kinds of tests, ONNX's own first."""
        present = {t.suite for t in self.tests}
        return [k for k in KINDS if k in present] + sorted(present - set(KINDS))

    def all_runs(self) -> list[dict[str, Any]]:
        """Return the totals of the runs before, and of this one."""
        summary = {row.name: dict(row.counts(self.tests)) for row in self.rows}
        return [*self.trend, {"date": self.date, "tests": len(self.tests), "backends": summary}]

    @staticmethod
    def percent(passed: int, of: int) -> str:
        """Return a share in percent, rounded down, so that only all is 100."""
        return "100 %" if passed == of > 0 else f"{1000 * passed // max(1, of) / 10:.1f} %"

    def of_suite(self, suite: str) -> list[BoardTest]:
        return [t for t in self.tests if t.suite == suite]


@dataclasses.dataclass
class History:
    """What was in the folder of a board when a run began, and when that was."""

    last: dict[str, Any]
    trend: list[dict[str, Any]]
    date: str

    @classmethod
    def of(cls, folder: Path, more: Sequence[Path] = ()) -> History:
        """Return what is in a folder, together with the results in other folders."""
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return cls(_joined([last_results(f) for f in (folder, *more)]), _trend(folder), date)


def make_board(tests: Sequence[BoardTest], runs: Sequence[Run], history: History, *, keep: bool = False) -> Board:
    """Return the board of some runs, compared with the last one.

    With `keep`, the results of the last run that are not from now stay: of other backends, and of other tests.
    """
    date, last = history.date, history.last
    known = {row["name"]: row for row in last.get("backends", [])}
    rows = []
    for run in runs:
        old = known.pop(run.contestant.name, None)
        before = None if old is None else {name: values[0] for name, values in old["outcomes"].items()}
        earlier = old["outcomes"] if old is not None and keep else {}
        outcomes = {name: Outcome(*values) for name, values in earlier.items()} | run.outcomes
        rows.append(Row(run.contestant.name, run.contestant.backend, run.versions, run.broken, date, outcomes, before))
    found = {t.id: t for t in tests}
    if keep:
        for old in known.values():
            outcomes = {name: Outcome(*values) for name, values in old["outcomes"].items()}
            rows.append(Row(old["name"], old["backend"], old["versions"], old["broken"], old["date"], outcomes))
        for name, kept in last.get("tests", {}).items():
            suite, _, short = name.partition("/")
            found.setdefault(name, BoardTest(suite, short, tuple(kept[0]), tuple(kept[1]), {}))
    return Board(list(found.values()), rows, date, history.trend)


def last_results(folder: Path) -> dict[str, Any]:
    """Return the results of the last run in a folder; an empty dict if there are none that this version reads."""
    try:
        found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}


def _joined(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return several results as one; of a test that a backend ran in two of them, the later result counts."""
    rows: dict[str, dict[str, Any]] = {}
    for one in results:
        for row in one.get("backends", []):
            known = rows.get(row["name"], {"outcomes": {}})
            rows[row["name"]] = {**row, "outcomes": {**known["outcomes"], **row["outcomes"]}}
    tests = {name: kept for one in results for name, kept in one.get("tests", {}).items()}
    return {"backends": list(rows.values()), "tests": tests} if rows else {}


def _trend(folder: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads((folder / TREND).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def write_board(board: Board, folder: Path) -> list[Path]:
    """Write results.json, trend.json, the page, and for each backend the files of onnx/backend-scoreboard."""
    from onward.scoreboard.page import render

    folder.mkdir(parents=True, exist_ok=True)
    files = {RESULTS: _dump(as_data(board)), TREND: _dump(board.all_runs()), PAGE: render(board)}
    for row in board.rows:
        files |= {f"backend-scoreboard/{_slug(row.name)}/{n}": t for n, t in _reports(board, row, folder).items()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, [text.encode("utf-8")])
    return [folder / RESULTS, folder / PAGE]


def as_data(board: Board) -> dict[str, Any]:
    """Return a board as the content of results.json."""
    return {
        "format": FORMAT,
        "date": board.date,
        "onnx": onnx.__version__,
        "problems": board.problems,
        "parts": board.parts,
        "tests": {t.id: [t.operators, t.dtypes] for t in board.tests},
        "backends": [
            {
                "name": row.name,
                "backend": row.backend,
                "versions": row.versions,
                "date": row.date,
                "broken": row.broken,
                "totals": {s: row.counts(board.tests)[s] for s in STATUSES},
                "outcomes": {n: [o.status, o.message, round(o.seconds, 4)] for n, o in sorted(row.outcomes.items())},
            }
            for row in board.rows
        ],
    }


def _reports(board: Board, row: Row, folder: Path) -> dict[str, str]:
    """Return the files that onnx/backend-scoreboard keeps for a backend; it knows ONNX's own tests only."""
    date = datetime.datetime.fromisoformat(row.date).strftime("%m/%d/%Y %H:%M:%S")
    tests = [t for t in board.tests if t.suite in _CLASSES and t.id in row.outcomes]
    report: dict[str, Any] = {"date": date} | {status: [] for status in STATUSES}
    by_operator: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for test in tests:
        status = row.outcomes[test.id].status
        report[status].append(f"{_CLASSES[test.suite]}::{test.name}_cpu")
        for operator in test.operators:
            by_operator[operator][status] += 1
    for status in STATUSES:
        report[status].sort()
    operators = []
    for name, counts in sorted(by_operator.items()):
        domain, _, short = name.rpartition(".")
        one = {f"{status}_tests": counts[status] for status in STATUSES}
        operators.append({"domain": domain, "op_type": short, **one, "total_tests": counts.total()})
    versions = [{"name": n, "version": v} for n, v in sorted(row.versions.items())]
    entry = {"date": date, **{s: len(report[s]) for s in STATUSES}, "total_ops": len(operators), "versions": versions}
    place = folder / "backend-scoreboard" / _slug(row.name)
    trend = [e for e in _trend(place) if e.get("date") != date]
    return {"report.json": _dump(report), "ops.json": _dump(operators), TREND: _dump([*trend, entry])}


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in name)


def _dump(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def contestant_name(backend: str) -> str:
    """Return the name of a backend on the board.

    >>> contestant_name("onward.backends.torch"), contestant_name("conformance/adapters/onnx-ad.py")
    ('onward torch', 'onnx-ad')
    """
    if backend.endswith(".py"):
        return Path(backend).stem
    return backend.replace("onward.backends.", "onward ", 1)


def contestant(given: str) -> Contestant:
    """Return the backend that the command line names: `MODULE` or `FILE.py`, and `@PYTHON` for another Python."""
    backend, _, python = given.partition("@")
    return Contestant(contestant_name(backend), backend, python or sys.executable)
