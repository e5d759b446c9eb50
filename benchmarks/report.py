"""The results of `run.py` as tables on the terminal, a part of docs/benchmarks.md, and a plot."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Any

from peers import PEERS
from rich.table import Table

OURS = ("onward", "onward plain")
ONNX_PEERS = ("onnxruntime-training", "onnxsim", "onnx-ad")
GOALS = {"mlp": 0.8, "embedding": 0.8, "lstm": 0.9, "gru": 0.9, "transformer": 0.9}  # × the fastest peer; else 1.0
COLUMNS = (
    "peer", "ms per step", "quartiles", "× fastest peer", "× torch eager", "of GEMM peak", "first step s", "peak MiB",
    "loss off by",
)  # fmt: skip


def machine() -> str:
    """Return the machine in words: processor and cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def measured(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the peers of a workload that have numbers."""
    return {peer: r for peer, r in result["peers"].items() if "error" not in r}


def fastest(result: dict[str, Any]) -> float:
    """Return the median of the fastest peer that is not ours; NaN if there is none."""
    return min((r["median_ms"] for p, r in measured(result).items() if p not in OURS), default=math.nan)


def of(result: dict[str, Any], peer: str, field: str) -> float:
    return float(result["peers"].get(peer, {}).get(field, math.nan))


def gemm_peak(run: dict[str, Any]) -> float:
    return max(result["gemm_gflops"] for result in run["workloads"].values())


def rows(workload: str, run: dict[str, Any]) -> list[list[str]]:
    """Return the cells of a workload's table, a row for each peer."""
    result = run["workloads"][workload]
    found = []
    for peer, r in result["peers"].items():
        if "error" in r:
            installed = not r["error"].startswith("not installed")
            found.append([peer, f"cannot: {r['error']}" if installed else r["error"]])
            continue
        share = result["flops"] / r["median_ms"] / 1e6 / gemm_peak(run)
        mark = "*" * bool(r["disturbed"]) + "†" * (r["rounds"] < run["rounds"])
        found.append(
            [
                peer + mark, f"{r['median_ms']:.2f}", f"{r['low_ms']:.2f} to {r['high_ms']:.2f}",
                ratio(r["median_ms"], fastest(result)), ratio(r["median_ms"], of(result, "torch eager", "median_ms")),
                f"{share:.0%}", f"{r['first_step_s']:.1f}", f"{r['peak_mib']:.0f}",
                "" if r["loss_off"] is None else f"{r['loss_off']:.0e}",
            ]
        )  # fmt: skip
    return found


def ratio(ours: float, theirs: float) -> str:
    return "" if math.isnan(ours / theirs) else f"{ours / theirs:.2f}"


def table(workload: str, run: dict[str, Any]) -> Table:
    """Return a workload's results for the terminal."""
    operations = run["workloads"][workload]["flops"] / 1e9
    shown = Table(title=f"{workload}: {operations:.3g} GFLOP per step", title_justify="left", caption_justify="left")
    for heading in COLUMNS:
        shown.add_column(heading, justify="left" if heading == "peer" else "right", no_wrap=heading == "peer")
    failed = []
    for row in rows(workload, run):
        if len(row) == len(COLUMNS):
            shown.add_row(*row)
        else:
            failed.append(f"{row[0]}: {row[1]}")
    shown.caption = "\n".join(failed)
    return shown


def goals(run: dict[str, Any]) -> list[str]:
    """Return the goals of the project against this run, as lines of a Markdown table."""
    lines = [
        "| workload | time, fastest peer | goal | time, torch eager | time, ONNX peers | memory, torch eager "
        "| first step, torch.compile (goal 0.3) |",
        "|---|---|---|---|---|---|---|",
    ]
    for workload, result in run["workloads"].items():
        ours = {field: of(result, "onward", field) for field in ("median_ms", "peak_mib", "first_step_s")}
        goal = next((g for family, g in GOALS.items() if workload.startswith(family)), 1.0)
        onnx = min((of(result, p, "median_ms") for p in ONNX_PEERS if p in measured(result)), default=math.nan)
        cells = [
            verdict(ours["median_ms"], fastest(result), goal),
            f"{goal:g}",
            verdict(ours["median_ms"], of(result, "torch eager", "median_ms")),
            verdict(ours["median_ms"], onnx),
            verdict(ours["peak_mib"], of(result, "torch eager", "peak_mib")),
            verdict(ours["first_step_s"], of(result, "torch.compile", "first_step_s"), 0.3),
        ]
        lines.append(f"| {workload} | " + " | ".join(cells) + " |")
    return lines


def verdict(ours: float, theirs: float, goal: float = 1.0) -> str:
    """Return a ratio, and whether it is what is wanted (no more than `goal`).

    >>> verdict(1.0, 2.0), verdict(3.0, 2.0), verdict(1.8, 2.0, 0.8), verdict(1.0, math.nan)
    ('0.50', '**1.50: missed**', '**0.90: missed**', '–')
    """
    if math.isnan(ours / theirs):
        return "–"
    return f"{ours / theirs:.2f}" if ours <= goal * theirs else f"**{ours / theirs:.2f}: missed**"


def markdown(run: dict[str, Any]) -> str:
    """Return the results as a part of a page."""
    lines = [
        f"{run['machine']}; {run['date']}, commit {run['commit'] or 'unknown'}; float32 matrix products at "
        f"{gemm_peak(run):.0f} GFLOPS with two threads; {run['rounds']} turns of {run['turn_s']:g} s for each peer, in "
        f"one run of {run['minutes']:.0f} minutes"
        + (f", interrupted and continued between workloads ({run['interrupted']} ×). " if run["interrupted"] else ". ")
        + disturbance(run),
        "",
        versions(run),
        "",
        "![time, memory and first step of every peer relative to PyTorch eager](benchmarks.svg)",
        "",
        "Onward against the goals (a ratio below 1 is better than what it is compared with):",
        "",
        *goals(run),
    ]
    for workload, result in run["workloads"].items():
        lines += ["", f"### {workload}", "", f"{result['flops'] / 1e9:.3g} GFLOP per step.", ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
        failed = []
        for row in rows(workload, run):
            if len(row) == len(COLUMNS):
                lines.append("| " + " | ".join(row) + " |")
            else:
                failed.append(f"- {row[0]}: {row[1]}")
        lines += ["", *failed] if failed else []
    return "\n".join(lines) + "\n"


def versions(run: dict[str, Any]) -> str:
    """Return the versions of what was measured, and which peers were not."""
    found = {peer: v for result in run["workloads"].values() for peer, v in result.get("versions", {}).items()}
    packages = {f"{name} {version}" for peer in PEERS if peer in found for name, version in found[peer].items()}
    absent = [peer for peer in PEERS if not any(peer in result["peers"] for result in run["workloads"].values())]
    text = f"Python {platform.python_version()}; {', '.join(sorted(packages))}."
    return text + (f" Not part of this run: {', '.join(absent)}." if absent else "")


def disturbance(run: dict[str, Any]) -> str:
    """Return how quiet the machine was."""
    peers = [r for result in run["workloads"].values() for r in measured(result).values()]
    repeated, disturbed = sum(r["repeated"] for r in peers), sum(r["disturbed"] for r in peers)
    text = ""
    for when in ("before", "after"):  # the peers themselves are the load of two threads that is there afterwards
        loads = [result[f"load_{when}"] for result in run["workloads"].values()]
        text += f"The load {when} a workload was {min(loads):.1f} to {max(loads):.1f}. " if loads else ""
    short = sum(r["rounds"] < run["rounds"] for r in peers)
    if short:
        text += f"Slow peers sat out some turns ({short} of the rows; they have a dagger). "
    text += f"Other processes disturbed {repeated} turns, which were repeated" if repeated else "No turn was disturbed"
    return text + (f"; {disturbed} were disturbed again (their peers have a star)." if disturbed else ".")


def write_section(page: Path, name: str, text: str) -> None:
    """Replace what is between two marks of the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}{end}{after}")


STYLES = {
    "onward": ("#d1495b", "o"), "onward plain": ("#d1495b", "D"), "torch eager": ("#333333", "|"),
    "torch fused": ("#30638e", "s"), "torch.compile": ("#30638e", "^"), "jax jit": ("#00798c", "P"),
    "torch tuned": ("#30638e", "d"), "jax kept": ("#00798c", "p"),
    "keras": ("#00798c", "*"), "iree": ("#6a994e", "<"), "onnx-ad": ("#8d6a9f", ">"),
    "onnxruntime-training": ("#edae49", "v"), "onnxsim": ("#8d6a9f", "X"),
}  # fmt: skip
PANELS = {"median_ms": "time per step", "peak_mib": "peak memory", "first_step_s": "time to first step"}


def plot(run: dict[str, Any], path: Path) -> None:
    """Write three panels, each value relative to torch eager's on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    workloads = run["workloads"]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 1.6 + 0.42 * len(workloads)), sharey=True)
    for axis, (field, title) in zip(axes, PANELS.items(), strict=True):
        for peer, (colour, mark) in STYLES.items():
            points = [
                (of(result, peer, field) / of(result, "torch eager", field), y)
                for y, result in enumerate(workloads.values())
            ]
            axis.plot(
                *zip(*points, strict=True), mark, color=colour, label=peer, markersize=8 if peer == "onward" else 6,
                markerfacecolor="none" if peer == "onward plain" else colour, zorder=3 if peer == "onward" else 2,
            )  # fmt: skip
        axis.axvline(1, color="#333333", linewidth=0.8, zorder=1.5)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_title(title, fontsize=11)
        axis.grid(axis="both", color="#e5e5e5")
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(which="both", length=0)
    axes[0].set_yticks(range(len(workloads)), list(workloads))
    axes[0].invert_yaxis()
    axes[1].set_xlabel("relative to torch eager (left of the line: better)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), frameon=False, loc="lower center", fontsize=9, columnspacing=1.2)
    figure.tight_layout(rect=(0, 0.5 / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
