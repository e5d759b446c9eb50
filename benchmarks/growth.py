"""How the time of a step grows with batch, width and depth of a perceptron: `python benchmarks/growth.py [--docs]`.

Onward beside PyTorch eager, each point in a process of its own, timed in turn. Prints the times and the slopes on
logarithmic axes (1: twice the size, twice the time), and writes growth.json and growth.svg into benchmarks/results;
`--docs` also writes the plot to docs/growth.svg and the slopes into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peers import Files
from report import write_section
from run import HERE, ask, take_turns

CENTRE = {"batch": 64, "width": 512, "depth": 2}
SIZES = {
    "batch": (8, 16, 32, 64, 128, 256, 512),
    "width": (64, 128, 256, 512, 1024, 2048),
    "depth": (1, 2, 4, 8, 16, 32),
}
PEERS = ("onward", "torch eager")
COLOURS = {"onward": "#d1495b", "torch eager": "#30638e"}
TURN = 0.25  # seconds


def name(axis: str, size: int) -> str:
    """Return the workload with one size changed.

    >>> name("width", 128)
    'mlp:64x128x2'
    """
    sizes = {**CENTRE, axis: size}
    return f"mlp:{sizes['batch']}x{sizes['width']}x{sizes['depth']}"


def measure(workload: str, folder: Path, rounds: int) -> dict[str, float]:
    """Return the median milliseconds per step of each peer."""
    workers = take_turns(workload, PEERS, folder, rounds, TURN)
    if errors := [f"{w.peer}: {w.error}" for w in workers if w.error]:
        raise SystemExit(f"{workload}: {'; '.join(errors)}")
    return {worker.peer: statistics.median(worker.times) * 1e3 for worker in workers}


def slope(sizes: list[int], times: list[float]) -> float:
    """Return the slope of the upper half on logarithmic axes; the fixed cost of a step hides it in the lower one.

    >>> round(slope([1, 2, 4, 8], [5.0, 5.0, 10.0, 20.0]), 3)
    1.0
    """
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(times[half:]), 1)[0])


def plot(results: dict[str, Any], path: Path) -> None:
    """Write a panel for each of batch, width and depth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 4), sharey=True)
    for panel, (axis, points) in zip(panels, results.items(), strict=True):
        sizes = [int(size) for size in points]
        for peer in PEERS:
            times = [point[peer] for point in points.values()]
            label = f"{peer}, slope {slope(sizes, times):.2f}"
            panel.plot(sizes, times, "o-", color=COLOURS[peer], label=label, markersize=5)
        fixed = ", ".join(f"{other} {size}" for other, size in CENTRE.items() if other != axis)
        panel.set_title(f"{axis} ({fixed})", fontsize=11)
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
    panels[0].set_ylabel("ms per step")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def markdown(results: dict[str, Any]) -> str:
    """Return plot and slopes as a part of a page."""
    lines = [
        "![milliseconds per step against batch, width and depth](growth.svg)",
        "",
        "| | smallest to largest | " + " | ".join(f"{p}: ms at both ends | slope" for p in PEERS) + " |",
        "|---" * (2 + 2 * len(PEERS)) + "|",
    ]
    for axis, points in results.items():
        cells = [axis, f"{min(SIZES[axis])} to {max(SIZES[axis])}"]
        for peer in PEERS:
            times = [point[peer] for point in points.values()]
            cells += [f"{times[0]:.2f} to {times[-1]:.1f}", f"{slope(list(SIZES[axis]), times):.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer at each point")
    parser.add_argument("--docs", action="store_true", help="write plot and slopes into docs/")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    workloads = dict.fromkeys(name(axis, size) for axis, sizes in SIZES.items() for size in sizes)
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        centre = name("batch", CENTRE["batch"])
        others = [name("batch", size) for size in SIZES["batch"] if size != CENTRE["batch"]]
        ask("prepare.py", folder, *(w for w in workloads if w not in others), "--training-only")
        for other in others:  # the batch axis of the file is unknown: one file serves all sizes
            shutil.copy(Files(Path(folder), centre).training, Files(Path(folder), other).training)
        for workload in workloads:
            measured[workload] = measure(workload, Path(folder), arguments.rounds)
            print(f"{workload:18}", *(f"{peer} {ms:8.2f} ms  " for peer, ms in measured[workload].items()), flush=True)
    results = {axis: {str(size): measured[name(axis, size)] for size in sizes} for axis, sizes in SIZES.items()}
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
