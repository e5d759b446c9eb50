"""Judge full runs of the suite: `python tests/conformance/gaps.py build/conformance-*.json` in `make conformance-run`.

Every failure must be listed in tests/known_gaps.toml under [[conformance]], by the names of its cases, and every skip
under [[conformance_skips]], by what the backend says, each with its reason. A line that matches nothing any more is an
error, too.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import tomllib

GAPS = Path(__file__).parents[1] / "known_gaps.toml"


def judge(report: dict[str, Any], gaps: list[dict[str, str]], skips: list[dict[str, str]]) -> list[str]:
    """Return what is wrong with a run: failures and skips that are not listed, and lines of this backend that lie."""
    backend = report["backend"].removeprefix("onward.backends.")
    own = [g for g in gaps if g["backend"] == backend]
    passed = {r["name"] for r in report["results"] if r["status"] == "passed"}
    failed = {r["name"]: r["message"] for r in report["results"] if r["status"] == "failed"}
    problems = [
        f"{backend}: {name} failed: {message.splitlines()[0][:200]}"
        for name, message in failed.items()
        if not any(re.fullmatch(g["cases"], name) for g in own)
    ]
    for gap in own:
        closed = sorted(n for n in passed if re.fullmatch(gap["cases"], n))
        if closed:
            problems.append(
                f"{backend}: known_gaps.toml: `{gap['cases']}` does not fail any more: {', '.join(closed[:3])}"
            )
        elif not any(re.fullmatch(gap["cases"], n) for n in failed):
            problems.append(f"{backend}: known_gaps.toml: no failure matches `{gap['cases']}`")
    return problems + _judge_skips(backend, report, [s for s in skips if s["backend"] == backend])


def _judge_skips(backend: str, report: dict[str, Any], own: list[dict[str, str]]) -> list[str]:
    skipped = {r["name"]: r["message"] for r in report["results"] if r["status"] == "skipped"}
    problems = [
        f"{backend}: {name} is skipped: {message.splitlines()[0][:200]}"
        for name, message in skipped.items()
        if not any(re.search(s["says"], message) for s in own)
    ]
    unused = [s["says"] for s in own if not any(re.search(s["says"], m) for m in skipped.values())]
    return problems + [f"{backend}: known_gaps.toml: no skip says `{says}`" for says in unused]


if __name__ == "__main__":
    listed = tomllib.loads(GAPS.read_text("utf-8"))
    found = [
        problem
        for path in sys.argv[1:]
        for problem in judge(
            json.loads(Path(path).read_text("utf-8")), listed["conformance"], listed["conformance_skips"]
        )
    ]
    print("\n".join(found) or "every failure and every skip is a known gap")
    sys.exit(1 if found else 0)
