"""A training step of attention against its length: `python benchmarks/attention.py [--docs] [--lengths 128 512 …]`.

One layer, eight heads of 64, a projection before and behind, SGD: Onward on ONNX Runtime with all values kept and with
`recompute="auto"` (attention in blocks where it is long, `passes/attention.py`), and PyTorch's
scaled_dot_product_attention (eager). The loss is that of the mean over the sequence: ONNX Runtime's mean of millions of
numbers is off by up to 2e-4, which would hide a difference between the peers. Each has a process of its own, and they
are timed in turn. The memory is what the steps add: the peak less what the process takes before the first step. Prints
the table and writes attention.json into benchmarks/results; `--docs` also writes the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peers import THREADS
from turns import ask, publish, start
from worker import answer, memory

HEADS, HEAD = 8, 64
LENGTHS = (128, 512, 1024, 2048, 4096)
PEERS = {"plain": "kept", "onward": "`auto`", "torch": "PyTorch"}
RECOMPUTE = {"plain": None, "onward": "auto"}
Step = Callable[[np.ndarray, np.ndarray], float]


def build(causal: bool) -> Any:
    """Return the layer as a PyTorch module."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(HEADS * HEAD, 3 * HEADS * HEAD)
            self.out = nn.Linear(HEADS * HEAD, HEADS * HEAD)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            q, k, v = self.project(x).reshape(batch, length, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return self.out(y.transpose(1, 2).reshape(batch, length, width)).mean(1)

    torch.manual_seed(0)
    return Layer()


def export(folder: Path, length: int, causal: bool) -> None:
    """Write the layer as the programs of Onward, one folder for each: what compiles leaves memory behind."""
    import torch

    import onward

    module, x, target = build(causal), torch.zeros(2, length, HEADS * HEAD), torch.zeros(2, HEADS * HEAD)
    optimizer, loss = torch.optim.SGD(module.parameters(), 0.1), torch.nn.MSELoss()
    model = onward.from_torch(module, loss=loss, optimizer=optimizer, example_inputs=(x,), example_targets=target)
    for peer, recompute in RECOMPUTE.items():
        onward.compile(model, recompute=recompute).save(folder / peer, self_test=False)


def torch_step(causal: bool) -> Step:
    import torch

    torch.set_num_threads(THREADS)
    module = build(causal)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)

    def step(x: np.ndarray, target: np.ndarray) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module(torch.from_numpy(x)), torch.from_numpy(target))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def onward_step(folder: Path) -> Step:
    from onward.backends import open_session
    from onward.compiler.program import Program

    program = Program.load(folder)
    session = open_session(program, "onnxruntime", threads=THREADS)

    def step(x: np.ndarray, target: np.ndarray) -> float:
        return float(session.step(dict(zip(program.input_names, (x, target), strict=True)))["loss"])

    return step


def work(peer: str, folder: str, batch: int, length: int, causal: bool) -> None:
    """Answer with times, losses and the peak for each number of steps read from stdin."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((batch, length, HEADS * HEAD), np.float32)
    target = draw.standard_normal((batch, HEADS * HEAD), np.float32)
    step = torch_step(causal) if peer == "torch" else onward_step(Path(folder, peer))
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = memory("VmRSS")
    answer(loss=step(x, target))
    for line in sys.stdin:
        times, cpu = [], []
        for _ in range(int(line)):
            began, used = time.perf_counter(), time.process_time()
            loss = step(x, target)
            times.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
        answer(times=times, cpu=cpu, loss=loss, memory=memory("VmHWM") - before)


def measure(folder: Path, batch: int, length: int, causal: bool, rounds: int, steps: int) -> dict[str, Any]:
    """Return what each peer answered for one length."""
    processes = {}
    for peer in PEERS:
        processes[peer] = start(__file__, peer, folder, batch, length, int(causal))
    rows: dict[str, Any] = {peer: {"times": [], "cpu": []} for peer in PEERS}
    for process in processes.values():
        ask(process)
    for _ in range(rounds):
        for peer, process in processes.items():
            told = ask(process, steps)
            rows[peer]["times"] += told["times"]
            rows[peer]["cpu"] += told["cpu"]
            rows[peer] |= {"memory": told["memory"], "loss": told["loss"]}
    for process in processes.values():
        process.communicate()
    losses = [rows[peer]["loss"] for peer in PEERS]
    if max(losses) - min(losses) > 1e-4 * abs(losses[0]):
        raise SystemExit(f"the losses differ: {dict(zip(PEERS, losses, strict=True))}")
    return {"batch": batch, "length": length, "causal": causal, "peers": rows}


def markdown(results: list[dict[str, Any]]) -> str:
    """Return the table: memory in MB, and the least and the middle of the times in ms."""
    names = list(PEERS.values())
    lines = [
        f"A step of one attention layer, {HEADS} heads of {HEAD}, {THREADS} threads: MB that the steps add, "
        "and ms per step (median, and the least).",
        "",
        "| length | batch | mask | " + " | ".join(f"{n}: MB" for n in names) + " | "
        + " | ".join(f"{n}: ms" for n in names) + " |",
        "|---" * (3 + 2 * len(names)) + "|",
    ]  # fmt: skip
    for row in results:
        peers = row["peers"]
        cells = [str(row["length"]), str(row["batch"]), "causal" if row["causal"] else "none"]
        cells += [f"{peers[p]['memory'] / 1e6:.0f}" for p in PEERS]
        cells += [
            f"{statistics.median(peers[p]['times']) * 1e3:.0f} ({min(peers[p]['times']) * 1e3:.0f})" for p in PEERS
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        peer, folder, batch, length, causal = sys.argv[2:]
        work(peer, folder, int(batch), int(length), bool(int(causal)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--batch", type=int, default=2, help="sequences per step")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    parser.add_argument(
        "--causal", type=int, nargs="+", default=(0, 1), choices=(0, 1), help="without a mask, with one"
    )
    parser.add_argument("--docs", action="store_true", help="write the table into docs/performance.md")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for causal in arguments.causal:
            for length in arguments.lengths:
                path = Path(folder, f"{length}-{causal}")
                export(path, length, bool(causal))
                sizes = arguments.batch, length, bool(causal)
                results.append(measure(path, *sizes, arguments.rounds, arguments.steps))
                print(markdown(results[-1:]).splitlines()[-1], flush=True)
                shown = {p: round(min(r["cpu"]) * 1e3) for p, r in results[-1]["peers"].items()}
                print(f"  least processor ms: {shown}", file=sys.stderr, flush=True)
    publish("attention", results, markdown(results), "performance.md" if arguments.docs else None)


if __name__ == "__main__":
    main()
