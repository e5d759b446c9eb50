"""Judge full runs of the suite: `python tests/conformance/gaps.py build/conformance-*.json` in `make conformance`.

Every failure must be listed in tests/known_gaps.toml under [[conformance]], with its reason; a line that matches no
failure any more is an error, too.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import tomllib

GAPS = Path(__file__).parents[1] / "known_gaps.toml"


def judge(report: dict[str, Any], gaps: list[dict[str, str]]) -> list[str]:
    """Return what is wrong with a run: failures that are not listed, and lines of this backend that are not true."""
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
    return problems


if __name__ == "__main__":
    listed = tomllib.loads(GAPS.read_text("utf-8"))["conformance"]
    found = [p for path in sys.argv[1:] for p in judge(json.loads(Path(path).read_text("utf-8")), listed)]
    print("\n".join(found) or "every failure is a known gap")
    sys.exit(1 if found else 0)
