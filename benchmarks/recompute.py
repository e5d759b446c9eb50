"""Memory of a step against its time, with recomputation: `python benchmarks/recompute.py [--docs]`.

The transformer of the benchmarks on ONNX Runtime: all values kept, `recompute="auto"`, and budgets between the memory
of the first and the least that is possible. Each in a process of its own, timed in turn. The memory is the peak of the
process less what it takes before Onward is imported. Prints the table and writes recompute.json into
benchmarks/results; `--docs` also writes the table into docs/training.md.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers import THREADS, Files
from turns import ask, publish, start
from worker import answer, memory
from workloads import find

HERE = Path(__file__).parent
WORKLOAD = "transformer-8"
SHARES = (0.75, 0.5, 0.25, 0.05)  # of the way from the least memory to that of all values kept
NONE = "none"


def work(folder: str, asked: str, batch: int) -> None:
    """Answer with the estimate, then with times and the peak for each number of steps read from stdin."""
    bare = memory("VmRSS")
    import onward
    from onward.backends import open_session

    chosen = "1000TB" if asked == NONE else asked  # nothing is recomputed, and the estimate is there
    program = onward.compile(Files(Path(folder), WORKLOAD).training, recompute=chosen, sizes={"batch": batch})
    (estimate,) = program.estimates.values()
    session = open_session(program, "onnxruntime", threads=THREADS)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, find(WORKLOAD).vocabulary, (8, batch, *find(WORKLOAD).shape[1:]))
    labels = rng.integers(0, 10, (8, batch))
    batches = [dict(zip(program.input_names, pair, strict=True)) for pair in zip(tokens, labels, strict=True)]
    answer(estimate=estimate.as_dict(), loss=float(session.step(batches[0])["loss"]))
    k = 1
    for line in sys.stdin:
        times, losses = [], []
        for _ in range(int(line)):
            began = time.perf_counter()
            losses.append(float(session.step(batches[k % len(batches)])["loss"]))
            times.append(time.perf_counter() - began)
            k += 1
        answer(times=times, losses=losses, peak=memory("VmHWM") - bare)


def least(folder: str, batch: int) -> tuple[int, int]:
    """Return the estimated bytes with all values kept, and the least that is possible."""
    import onward
    from onward.errors import ArgumentError

    training = Files(Path(folder), WORKLOAD).training
    (kept,) = onward.compile(training, recompute="1000TB", sizes={"batch": batch}).estimates.values()
    try:
        onward.compile(training, recompute="1B", sizes={"batch": batch})
    except ArgumentError as refused:
        number, unit = re.findall(r"a budget from ([\d.]+) (\w+) on", str(refused))[0]
        return kept.bytes_before, int((float(number) + 0.1) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit])
    raise SystemExit("a budget of one byte was accepted")


def measure(folder: str, batch: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    kept, fewest = least(folder, batch)
    budgets = [f"{round((fewest + share * (kept - fewest)) / 1e6)}MB" for share in SHARES]
    rows: list[dict[str, Any]] = []
    processes = []
    for asked in (NONE, "auto", *budgets):
        processes.append(start(__file__, folder, asked, batch))
        rows.append({"asked": asked, "times": [], "losses": [], **ask(processes[-1])})
    for _ in range(rounds):
        for process, row in zip(processes, rows, strict=True):
            told = ask(process, steps)
            row["times"] += told["times"]
            row["losses"] += told["losses"]
            row["peak"] = told["peak"]
    for process in processes:
        process.communicate()
    return rows


def markdown(rows: list[dict[str, Any]], batch: int) -> str:
    first = statistics.median(rows[0]["times"])
    lines = [
        f"{WORKLOAD}'s encoder with {batch} sequences of 128 on ONNX Runtime, {THREADS} threads:",
        "",
        "| `recompute` | nodes twice | estimated MB | measured MB | ms per step | time | loss differs by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        middle = statistics.median(row["times"])
        apart = max(abs(a - b) for a, b in zip(row["losses"], rows[0]["losses"], strict=True))
        cells = [
            f"`{row['asked']}`", str(row["estimate"]["nodes"]), f"{row['estimate']['bytes_after'] / 1e6:.0f}",
            f"{row['peak'] / 1e6:.0f}", f"{middle * 1e3:.0f}", f"{middle / first:.2f}", f"{apart:.1g}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="sequences per step")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each setting")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/training.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare = [sys.executable, str(HERE / "prepare.py"), folder, WORKLOAD, "--training-only"]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        rows = measure(folder, arguments.batch, arguments.rounds, arguments.steps)
    publish("recompute", rows, markdown(rows, arguments.batch), "training.md" if arguments.docs else None)


if __name__ == "__main__":
    main()
