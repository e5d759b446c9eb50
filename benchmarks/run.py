"""`make bench`: Onward beside its peers, each in a process of its own, timed in turn in one run.

    python benchmarks/run.py [--workloads mlp-64,lenet-64] [--peers onward,"torch eager"] [--rounds 8] [--steps 10]

Prints a table of milliseconds per step (the median of all rounds) and the ratio to Onward, and writes
results/bench.json and results/bench.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers import PEERS, gemm_peak
from rich.console import Console
from rich.table import Table
from workloads import WORKLOADS

HERE = Path(__file__).parent
TURN = 0.4  # seconds
OTHER_PEERS = ("onnxruntime-training", "onnxsim")


class Worker:
    """One peer on one workload, in its own process."""

    def __init__(self, peer: str, workload: str) -> None:
        self.peer = peer
        self.times: list[float] = []
        self.answer: dict[str, Any] = {}
        self._process: Any = None
        environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
        python, script = sys.executable, "peers.py"
        if peer in OTHER_PEERS:
            python, script = str(HERE / ".venvs" / peer / "bin" / "python"), "other_peers.py"
        if not Path(python).exists():
            self.error = "not installed: make bench-peers"
            return
        self._process = subprocess.Popen(
            [python, str(HERE / script), peer, workload],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        first = self._read()
        self.error = "" if first else self._why()
        self.first = first.get("first")
        self.losses = [first.get("loss")]

    def run(self, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        self.answer = self._read()
        if not self.answer:
            self.error = self._why()
            return
        self.times += self.answer["times"]
        self.losses.append(self.answer["loss"])

    def steps_of_a_turn(self) -> int:
        """Return how many steps fill a turn: the first ones after a pause, on cold caches, must not decide."""
        return min(200, round(TURN / statistics.median(self.times))) if self.times else 20

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        return {}

    def _why(self) -> str:
        text = (self._process.communicate()[1] or "").strip().splitlines()
        return text[-1][:160] if text else "it ended without a word"


def measure(workload: str, peers: list[str], rounds: int, steps: int) -> dict[str, Any]:
    """Return the results of every peer on one workload, timed in turn."""
    subprocess.run([sys.executable, str(HERE / "peers.py"), "--export", workload], check=True)
    workers = [Worker(peer, workload) for peer in peers]
    for _ in range(rounds):
        for worker in workers:
            if not worker.error:
                worker.run(max(steps, worker.steps_of_a_turn()))
    results = {}
    for worker in workers:
        if worker.error:
            results[worker.peer] = {"error": worker.error}
        else:
            ordered = sorted(worker.times)
            results[worker.peer] = {
                "median_ms": statistics.median(ordered) * 1e3,
                "best_ms": ordered[0] * 1e3,
                "first_step_s": worker.first,
                "peak_mib": worker.answer["peak"] / 2**20,
                "last_loss": worker.losses[-1],
            }
        worker.close()
    return results


def show(workload: str, results: dict[str, Any], peak: float, console: Console) -> None:
    table = Table(title=f"{workload}", title_justify="left")
    for heading in ("peer", "ms per step", "best", "× onward", "first step s", "peak MiB", "of GEMM peak", "loss"):
        table.add_column(heading, justify="left" if heading == "peer" else "right")
    own = results.get("onward", {}).get("median_ms")
    for peer, r in results.items():
        if "error" in r:
            table.add_row(peer, f"cannot: {r['error'][:60]}")
            continue
        share = WORKLOADS[workload].flops / (r["median_ms"] * 1e-3) / 1e9 / peak
        ratio = f"{r['median_ms'] / own:.2f}" if own else ""
        table.add_row(
            peer, f"{r['median_ms']:.2f}", f"{r['best_ms']:.2f}", ratio, f"{r['first_step_s']:.2f}",
            f"{r['peak_mib']:.0f}", f"{share:.0%}", f"{r['last_loss']:.4f}",
        )  # fmt: skip
    console.print(table)


def markdown(everything: dict[str, Any], peak: float, rounds: int, steps: int) -> str:
    """Return the results as a page: milliseconds per step, and first step and memory."""
    peers = list(dict.fromkeys(p for r in everything.values() for p in r))
    lines = [
        "# Benchmarks",
        "",
        "Written by `python benchmarks/run.py --markdown docs/benchmarks.md`. One process per peer, two threads each,",
        f"timed in turn ({rounds} turns of at least {steps} steps and {TURN} s each): the median in milliseconds",
        "per step, the best in brackets.",
        f"{os.cpu_count()} cores, float32 matrix products at {peak:.0f} GFLOPS.",
        "",
        "| workload | " + " | ".join(peers) + " |",
        "|---|" + "---|" * len(peers),
    ]
    for name, results in everything.items():
        cells = [_cell(results.get(p, {}), "{median_ms:.1f} ({best_ms:.1f})") for p in peers]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "First step in seconds, and peak memory of the process in MiB:", ""]
    lines += ["| workload | " + " | ".join(peers) + " |", "|---|" + "---|" * len(peers)]
    for name, results in everything.items():
        cells = [_cell(results.get(p, {}), "{first_step_s:.1f} s, {peak_mib:.0f}") for p in peers]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(result: dict[str, Any], form: str) -> str:
    return form.format(**result) if "median_ms" in result else "–"


def plot(everything: dict[str, Any], path: Path) -> None:
    """Write bars of milliseconds relative to torch eager (lower is better)."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(everything)
    peers = list(dict.fromkeys(p for r in everything.values() for p in r))
    figure, axes = plt.subplots(figsize=(2 + 1.4 * len(names), 4.5))
    width = 0.8 / len(peers)
    for i, peer in enumerate(peers):
        heights = []
        for name in names:
            base = everything[name].get("torch eager", {}).get("median_ms")
            mine = everything[name].get(peer, {}).get("median_ms")
            heights.append(mine / base if mine and base else 0.0)
        axes.bar([x + i * width for x in range(len(names))], heights, width, label=peer)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(names))], names, rotation=20)
    axes.set_ylabel("time per step, relative to torch eager")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--peers", default=",".join([*PEERS, *OTHER_PEERS]))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--markdown", type=Path, help="also write the tables as a page")
    arguments = parser.parse_args()
    console = Console()
    output = HERE / "results"
    output.mkdir(exist_ok=True)
    peak = gemm_peak()
    console.print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, GEMM peak {peak:.0f} GFLOPS")
    everything = {}
    for workload in arguments.workloads.split(","):
        everything[workload] = measure(workload, arguments.peers.split(","), arguments.rounds, arguments.steps)
        show(workload, everything[workload], peak, console)
        (output / "bench.json").write_text(json.dumps({"gemm_peak_gflops": peak, "results": everything}, indent=2))
    plot(everything, output / "bench.svg")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(everything, peak, arguments.rounds, arguments.steps))
    console.print(f"written: {output / 'bench.json'}, {output / 'bench.svg'}")


if __name__ == "__main__":
    main()
