"""Run the suite on a backend: `python -m onward_conformance --backend MODULE`."""

from __future__ import annotations

import argparse
import collections
import importlib
import importlib.util
import json
import pathlib
import sys
from typing import Any

from onward_conformance.cases import KINDS, VERSION, Case, SuiteError, cases
from onward_conformance.runner import Result, run


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0 if no case failed, 1 if one did, 2 if the suite or the backend cannot be used."""
    parser = argparse.ArgumentParser(prog="onward_conformance", description=__doc__)
    parser.add_argument(
        "--backend", required=True, help="a module, module:Class or file.py with ONNX's backend interface"
    )
    parser.add_argument("--folder", help="a generated suite; by default the one that is installed")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--operator", help="only cases of this operator, scenario or rule")
    parser.add_argument("--only", help="only cases with this text in their name")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--json", help="write every result to this file")
    parser.add_argument("--failures", type=int, default=20, help="how many failures to show (default 20)")
    chosen = parser.parse_args(arguments)
    try:
        backend = _load(chosen.backend)
    except Exception as error:  # noqa: BLE001 (importing runs the backend's own code)
        print(f"error: {chosen.backend} cannot be used: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    try:
        found = cases(chosen.folder, kind=chosen.kind, operator=chosen.operator, only=chosen.only)
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not found:
        print("error: no case matches", file=sys.stderr)
        return 2
    results: list[tuple[Case, Result]] = []
    for index, case in enumerate(found):
        if sys.stderr.isatty():
            print(f"\r{index + 1}/{len(found)} {case.name[:80]:80}", end="", file=sys.stderr)
        results.append((case, run(case, backend, chosen.device)))
    if sys.stderr.isatty():
        print("\r" + " " * 100 + "\r", end="", file=sys.stderr)
    print(table(results))
    failed = [(c, r) for c, r in results if r.status == "failed"]
    for case, result in failed[: chosen.failures]:
        print(f"\nFAILED {case.name}\n  {result.message[:600]}")
    if len(failed) > chosen.failures:
        print(f"\n… and {len(failed) - chosen.failures} more; --json FILE has all of them")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(report(chosen.backend, results), file, indent=1)
    return 1 if failed else 0


def table(results: list[tuple[Case, Result]]) -> str:
    """Return passed, failed and skipped by kind, and the reasons of skips with their counts, as text."""
    lines = [f"{'kind':<12}{'cases':>8}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>10}"]
    for kind in [*KINDS, "all"]:
        chosen = [r for c, r in results if kind in (c.kind, "all")]
        if not chosen:
            continue
        counts = collections.Counter(r.status for r in chosen)
        seconds = sum(r.seconds for r in chosen)
        lines.append(
            f"{kind:<12}{len(chosen):>8}{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>9}{seconds:>10.1f}"
        )
    reasons = collections.Counter(r.message.splitlines()[0][:100] for _, r in results if r.status == "skipped")
    lines += [f"  skipped {count}: {reason}" for reason, count in reasons.most_common(12)]
    return "\n".join(lines)


def report(backend: str, results: list[tuple[Case, Result]]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "suite": VERSION,
        "backend": backend,
        "results": [
            {"name": c.name, "kind": c.kind, "operator": c.operator, "dtypes": list(c.dtypes), "shapes": c.shapes,
             "status": r.status, "message": r.message, "seconds": round(r.seconds, 4)}
            for c, r in results
        ],
    }  # fmt: skip


def _load(name: str) -> Any:
    path = pathlib.Path(name)
    if path.suffix == ".py":
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None  # as for every file whose name ends with .py
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = found
        sys.path.insert(0, str(path.parent.resolve()))  # a script finds the files beside it
        spec.loader.exec_module(found)
        return found
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


if __name__ == "__main__":
    raise SystemExit(main())
