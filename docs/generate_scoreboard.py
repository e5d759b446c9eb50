"""Write the table of docs/scoreboard.md: `python docs/generate_scoreboard.py site/results.json`."""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("scoreboard.md")
BEGIN, END = "<!-- board: begin -->", "<!-- board: end -->"
OWN = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
TRAINING = ("node/test_ada", "node/test_momentum", "node/test_nesterov", "simple/test_gradient")


def table(results: dict) -> str:
    """Return the board as a Markdown table, whole runs before samples, best first, with what the numbers are of."""
    suites = collections.Counter(name.partition("/")[0] for name in results["tests"])
    kinds = [s for s in OWN if s in suites] + sorted(set(suites) - set(OWN))
    lines = ["| backend | versions | nine training tests | ai.onnx.ml | " + " | ".join(kinds) + " | failed | skipped |"]
    lines.append("|---|---|---|---|" + "---:|" * (len(kinds) + 2))
    for row in sorted(results["backends"], key=lambda r: _rank(r, len(results["tests"])), reverse=True):
        outcomes = {name: values[0] for name, values in row["outcomes"].items()}
        cells = [_cell(outcomes, [n for n in results["tests"] if n.startswith(f"{kind}/")]) for kind in kinds]
        training = _cell(outcomes, [n for n in results["tests"] if n.startswith(TRAINING)])
        ml = _cell(outcomes, [n for n in results["tests"] if n.startswith("node/test_ai_onnx_ml")])
        names = {k: v for k, v in row["versions"].items() if k not in ("python", "numpy", "onward")}
        versions = ", ".join(f"{k} {v.partition('+')[0]}" for k, v in names.items())
        totals = row["totals"]
        name = row["name"] + (" (broken)" if row["broken"] else "")
        lines.append(
            f"| {name} | {versions} | {training} | {ml} | "
            + " | ".join(cells)
            + f" | {totals['failed']} | {totals['skipped']} |"
        )
    count = len(results["tests"])
    lines.append(
        f"\nOf {count} tests with onnx {results['onnx']}, on {results['date'][:10]}. A dash: not run. "
        "A star: of a sample (`--sample`), chosen by the names of the tests. "
        "`node`, `simple`, `pytorch-*` and `real` are ONNX's own, the others Onward's."
    )
    return "\n".join(lines)


def _rank(row: dict, count: int) -> tuple[bool, float]:
    """Return what a row is sorted by: whole runs before samples, then the share of passed tests."""
    ran = sum(row["totals"].values())
    return ran == count, row["totals"]["passed"] / max(1, ran)


def _cell(outcomes: dict[str, str], names: list[str]) -> str:
    ran = [outcomes[n] for n in names if n in outcomes]
    if not ran:
        return "–"
    passed = ran.count("passed")
    return f"{passed}/{len(ran)}" + ("" if len(ran) == len(names) else "*")


def main() -> None:
    results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
