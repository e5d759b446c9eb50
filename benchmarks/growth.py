"""How a perceptron's step grows with batch, width, depth and parameters: `python benchmarks/growth.py [--docs]`.

Onward beside PyTorch eager, each point in a process of its own, timed in turn. Prints times, memory and the slopes on
logarithmic axes (1: twice the size, twice the time), and writes growth.json and growth.svg into benchmarks/results;
`--docs` also writes the plot to docs/growth.svg and the slopes into docs/benchmarks.md. `--axis parameters` measures
one axis. The largest model has 500 million parameters: that needs about 16 GiB of memory, and disk for its file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from report import write_section
from run import HERE, ask, take_turns

CENTRE = {"batch": 64, "width": 512, "depth": 2}
SIZES = {
    "batch": (8, 16, 32, 64, 128, 256, 512),
    "width": (64, 128, 256, 512, 1024, 2048),
    "depth": (1, 2, 4, 8, 16, 32),
    "parameters": (1, 4, 16, 64, 250, 500),  # millions
}
LARGE = 100 * 10**6  # parameters; above, the peers run one after the other, as they do not fit into memory together
GIB = "20"  # of memory for each process; PyTorch with Adam needs 8 for the largest model
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


def measure(workload: str, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median milliseconds per step of each peer, and the MiB that it needs."""
    groups = [(peer,) for peer in PEERS] if size(workload) > LARGE else [PEERS]
    workers = [w for group in groups for w in take_turns(workload, group, folder, rounds, TURN)]
    if errors := [f"{w.peer}: {w.error}" for w in workers if w.error]:
        raise SystemExit(f"{workload}: {'; '.join(errors)}")
    return {
        worker.peer: {"ms": statistics.median(worker.times) * 1e3, "mib": worker.last["peak"] / 2**20}
        for worker in workers
    }


def slope(sizes: list[int], times: list[float]) -> float:
    """Return the slope of the upper half on logarithmic axes; the fixed cost of a step hides it in the lower one.

    >>> round(slope([1, 2, 4, 8], [5.0, 5.0, 10.0, 20.0]), 3)
    1.0
    """
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(times[half:]), 1)[0])


def plot(results: dict[str, Any], path: Path) -> None:
    """Write a panel for each axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    figure, panels = pyplot.subplots(1, len(results), figsize=(4 * len(results), 4), squeeze=False)
    for panel, (axis, points) in zip(panels[0], results.items(), strict=True):
        sizes = [int(size) for size in points]
        for peer in PEERS:
            times = [point[peer]["ms"] for point in points.values()]
            label = f"{peer}, slope {slope(sizes, times):.2f}"
            panel.plot(sizes, times, "o-", color=COLOURS[peer], label=label, markersize=5)
        varied = "width" if axis == "parameters" else axis
        fixed = ", ".join(f"{other} {size}" for other, size in CENTRE.items() if other != varied)
        panel.set_title(f"{UNITS.get(axis, axis)} ({fixed})", fontsize=11)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_locator(FixedLocator(sizes))
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
    for axis, points in results.items():
        sizes = [int(size) for size in points]
        cells = [UNITS.get(axis, axis), f"{min(sizes)} to {max(sizes)}"]
        for peer in PEERS:
            times, memory = ([point[peer][field] for point in points.values()] for field in ("ms", "mib"))
            cells += [f"{times[0]:.2f} to {times[-1]:.1f}", f"{slope(sizes, times):.2f}"]
            cells += [f"{memory[0]:.0f} to {memory[-1]:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer at each point")
    parser.add_argument("--axis", action="append", choices=list(SIZES), help="only this one; may be repeated")
    parser.add_argument("--docs", action="store_true", help="write plot and slopes into docs/")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.docs and arguments.axis:
        raise SystemExit("--docs writes the page of one run of all axes: leave out --axis")
    chosen = {axis: sizes for axis, sizes in SIZES.items() if axis in (arguments.axis or SIZES)}
    workloads = dict.fromkeys(name(axis, size) for axis, sizes in chosen.items() for size in sizes)
    os.environ["BENCH_GIB"] = GIB
    measured = {}
    for workload in workloads:
        with tempfile.TemporaryDirectory() as folder:
            ask("prepare.py", folder, workload, "--training-only")
            measured[workload] = measure(workload, Path(folder), arguments.rounds)
        shown = (f"{peer} {found['ms']:8.2f} ms {found['mib']:6.0f} MiB" for peer, found in measured[workload].items())
        print(f"{workload:32}", *shown, sep="  ", flush=True)
    results = {axis: {str(size): measured[name(axis, size)] for size in sizes} for axis, sizes in chosen.items()}
    print("\n" + markdown(results))
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "growth.json").write_text(json.dumps(results, indent=2) + "\n")
    plot(results, arguments.output / "growth.svg")
    if arguments.docs:
        docs = HERE.parent / "docs"
        plot(results, docs / "growth.svg")
        write_section(docs / "benchmarks.md", "growth", markdown(results))


if __name__ == "__main__":
    main()
