"""How a perceptron's step grows with batch, width, depth and parameters: `python benchmarks/growth.py [--docs]`.

Onward beside PyTorch eager, each point in a process of its own, timed in turn. Prints times, memory and the slopes on
logarithmic axes (1: twice the size, twice the time), and writes growth.json and growth.svg into benchmarks/results;
`--docs` also writes the plot to docs/growth.svg and the slopes into docs/benchmarks.md. `--axis parameters` measures
one axis. Each point is written to growth.json as soon as it is measured, and `--continue` goes on behind the last one.
The largest model has 500 million parameters: that needs 12 GiB of memory, and 6 GB of disk for its file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, write_section
from run import HERE, ask, commit, keep, take_turns

CENTRE = {"batch": 64, "width": 512, "depth": 2}
SIZES = {
    "batch": (8, 16, 32, 64, 128, 256, 512),
    "width": (64, 128, 256, 512, 1024, 2048),
    "depth": (1, 2, 4, 8, 16, 32),
    "parameters": (1, 4, 16, 64, 250, 500),  # millions
}
SMALL = 20 * 10**6  # parameters; up to here, one process writes all files
LARGE = 100 * 10**6  # parameters; above, the peers run one after the other, as they do not fit into memory together
GIB = "20"  # of memory for each process
PREPARE_LIMIT = 150.0  # seconds in which the file of a model must be written, 10 for each more; peers have their own
PEERS = ("onward", "torch eager")
UNITS = {"parameters": "million parameters"}
COLOURS = {"onward": "#d1495b", "torch eager": "#30638e"}
TURN = 0.25  # seconds


def name(axis: str, size: int) -> str:
    """Return the workload with one size changed.

    >>> name("width", 128)
    'mlp:batch=64,width=128,depth=2'
    """
    sizes = {**CENTRE, axis: size}
    if million := sizes.pop("parameters", 0):
        sizes["width"] = width_for(million * 10**6)
    return "mlp:" + ",".join(f"{key}={value}" for key, value in sizes.items())


def width_for(parameters: int) -> int:
    """Return the width of two hidden layers between 784 inputs and 10 outputs that have so many parameters.

    >>> width_for(500_000_000)
    21966
    """
    return round(math.sqrt(398**2 + parameters) - 398)


def size(workload: str) -> int:
    """Return how many parameters a perceptron has.

    >>> size(name("parameters", 500))
    499990102
    """
    sizes = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", workload)}
    width, depth = sizes["width"], sizes["depth"]
    return 785 * width + (depth - 1) * (width + 1) * width + 10 * (width + 1)


Point = dict[str, dict[str, Any]]  # of each peer: ms and MiB, or an error


def prepare(workloads: list[str], folder: str) -> str:
    """Write the training files of some models; return why not, if they are not there in time."""
    limit = PREPARE_LIMIT + 10.0 * (len(workloads) - 1)
    try:
        ask("prepare.py", folder, *workloads, "--training-only", limit=limit)
    except subprocess.TimeoutExpired:
        return f"no training file in {limit:.0f} s"
    return ""


def measure(workload: str, folder: Path, rounds: int) -> Point:
    """Return the median milliseconds per step of each peer and the MiB that it needs, or why there are none."""
    groups = [(peer,) for peer in PEERS] if size(workload) > LARGE else [PEERS]
    workers = [w for group in groups for w in take_turns(workload, group, folder, rounds, TURN)]
    return {
        w.peer: {"error": w.error}
        if w.error
        else {"ms": statistics.median(w.times) * 1e3, "mib": w.last["peak"] / 2**20, "disturbed": w.disturbed}
        for w in workers
    }


def measured(points: dict[str, Point], peer: str) -> dict[int, dict[str, float]]:
    """Return the points of an axis at which a peer has numbers, by size."""
    return {int(size): point[peer] for size, point in points.items() if "error" not in point[peer]}


def shown(workload: str, point: Point) -> str:
    """Return a line for the terminal."""
    parts = (
        f"{peer} " + (f"failed: {r['error']}" if "error" in r else f"{r['ms']:8.2f} ms {r['mib']:6.0f} MiB")
        for peer, r in point.items()
    )
    return "  ".join((f"{workload:32}", *parts))


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the slope of the upper half on logarithmic axes; the fixed cost of a step hides it in the lower one.

    One point has none.

    >>> round(slope([1, 2, 4, 8], [5.0, 5.0, 10.0, 20.0]), 3)
    1.0
    """
    half = len(sizes) // 2
    if len(sizes) - half < 2:
        return math.nan
    return float(np.polyfit(np.log(sizes[half:]), np.log(times[half:]), 1)[0])


def plot(results: dict[str, Any], path: Path) -> None:
    """Write a panel for each axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    figure, panels = pyplot.subplots(1, len(results), figsize=(4 * len(results), 4), squeeze=False)
    for panel, (axis, points) in zip(panels[0], results.items(), strict=True):
        for peer in PEERS:
            found = measured(points, peer)
            if not found:
                continue
            sizes, times = list(found), [point["ms"] for point in found.values()]
            label = f"{peer}, slope {slope(sizes, times):.2f}"
            panel.plot(sizes, times, "o-", color=COLOURS[peer], label=label, markersize=5)
        varied = "width" if axis == "parameters" else axis
        fixed = ", ".join(f"{other} {size}" for other, size in CENTRE.items() if other != varied)
        panel.set_title(f"{UNITS.get(axis, axis)} ({fixed})", fontsize=11)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_locator(FixedLocator([int(size) for size in points]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.grid(color="#e5e5e5")
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, loc="upper left", fontsize=9)
    panels[0][0].set_ylabel("ms per step")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def markdown(results: dict[str, Any]) -> str:
    """Return plot and slopes as a part of a page."""
    lines = [
        "![milliseconds per step against batch, width, depth and parameters](growth.svg)",
        "",
        "| | smallest to largest | "
        + " | ".join(f"{p}: ms at both ends | slope | MiB at both ends" for p in PEERS)
        + " |",
        "|---" * (2 + 3 * len(PEERS)) + "|",
    ]
    failed = []
    for axis, points in results.items():
        unit, sizes = UNITS.get(axis, axis), [int(size) for size in points]
        cells = [unit, f"{min(sizes)} to {max(sizes)}"]
        for peer in PEERS:
            found = measured(points, peer)
            cells += _row(found) if found else ("–", "–", "–")
            failed += [f"- {unit} {n}, {peer}: {points[str(n)][peer]['error']}" for n in sizes if n not in found]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *(["", *failed] if failed else [])]) + "\n"


def _row(found: dict[int, dict[str, float]]) -> tuple[str, str, str]:
    first, last = found[min(found)], found[max(found)]
    steep = slope([*found], [p["ms"] for p in found.values()])
    memory = f"{first['mib']:.0f} to {last['mib']:.0f}"
    return f"{first['ms']:.2f} to {last['ms']:.1f}", "–" if math.isnan(steep) else f"{steep:.2f}", memory


def large(results: dict[str, Any]) -> str:
    """Return the points of the largest models one by one."""
    lines = ["| million parameters | " + " | ".join(f"{p}: ms | MiB" for p in PEERS) + " |", "|---:" * 5 + "|"]
    for count, point in results["parameters"].items():
        cells = [c for p in PEERS for c in (("–", "–") if "error" in point[p] else _cells(point[p]))]
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cells(found: dict[str, float]) -> tuple[str, str]:
    return f"{found['ms']:.1f}", f"{found['mib']:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer at each point")
    parser.add_argument("--axis", action="append", choices=list(SIZES), help="only this one; may be repeated")
    parser.add_argument("--docs", action="store_true", help="write plot and slopes into docs/")
    parser.add_argument("--continue", action="store_true", dest="resume", help="go on with a run that was interrupted")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.docs and arguments.axis:
        raise SystemExit("--docs writes the page of one run of all axes: leave out --axis")
    chosen = {axis: sizes for axis, sizes in SIZES.items() if axis in (arguments.axis or SIZES)}
    workloads = dict.fromkeys(name(axis, size) for axis, sizes in chosen.items() for size in sizes)
    os.environ["BENCH_GIB"] = GIB
    arguments.output.mkdir(parents=True, exist_ok=True)
    stored = arguments.output / "growth.json"
    about = {"machine": machine(), "commit": commit(), "rounds": arguments.rounds}
    run: dict[str, Any] = {**about, "seconds": 0.0, "interrupted": 0, "points": {}}
    if arguments.resume and stored.exists():
        run = json.loads(stored.read_text())
        if changed := [key for key, value in about.items() if run.get(key) != value]:
            raise SystemExit(f"--continue: the run in {stored} differs in {', '.join(changed)}; start a new one")
        run["interrupted"] += 1
    left = [workload for workload in workloads if workload not in run["points"]]
    small = [workload for workload in left if size(workload) <= SMALL]
    for group in [small] * bool(small) + [[workload] for workload in left if workload not in small]:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            problem = prepare(group, folder)
            for workload in group:
                errors: Point = {peer: {"error": problem} for peer in PEERS}
                run["points"][workload] = errors if problem else measure(workload, Path(folder), arguments.rounds)
                run["seconds"] += time.perf_counter() - began
                began = time.perf_counter()
                keep(run, stored)
                print(shown(workload, run["points"][workload]), flush=True)
    results = {axis: {str(n): run["points"][name(axis, n)] for n in sizes} for axis, sizes in chosen.items()}
    text = f"{about_run(run)}\n\n{markdown(results)}" + (f"\n{large(results)}" if "parameters" in results else "")
    print("\n" + text)
    plot(results, arguments.output / "growth.svg")
    if arguments.docs:
        docs = HERE.parent / "docs"
        plot(results, docs / "growth.svg")
        write_section(docs / "benchmarks.md", "growth", text)


def about_run(run: dict[str, Any]) -> str:
    """Return on what and how it was measured."""
    disturbed = sum(result.get("disturbed", 0) for point in run["points"].values() for result in point.values())
    text = (
        f"{run['machine']}; commit {run['commit'] or 'unknown'}; {run['rounds']} turns of {TURN:g} s for each peer at "
    )
    text += f"each point, in one run of {run['seconds'] / 60:.0f} minutes"
    text += f", interrupted and continued between points ({run['interrupted']} ×)" if run["interrupted"] else ""
    return text + f". Other processes disturbed {disturbed} turns that count."


if __name__ == "__main__":
    main()
