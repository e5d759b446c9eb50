"""A training step as a native binary of IREE, beside ONNX Runtime and JAX (XLA): milliseconds, compilation, sizes.

ONNX Runtime comes twice: `plain`, its own kernels alone, and as the backend is by default, with Onward's kernels in C.

    python benchmarks/native.py [--rounds 40] [--batch 64] [--threads 1 2] [--networks mlp lenet digits] [--docs]

All train the same model on the same batches through `onward.Trainer`, in turn, so that what else the machine does
meets all alike. Each number of threads is a process of its own that may use so many cores. The milliseconds are
medians of one step; the quotient is the median of the quotients of neighbouring runs. The seconds of IREE and JAX are
those until the first step is done, without binaries of an earlier run. `--docs` writes the table into docs/native.md,
with the load of the machine before and after: run it on a machine that does nothing else. It takes about two minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import report
from onnx import helper, numpy_helper

import onward
from onward.errors import counted
from onward.samples import build

PAGE = Path(__file__).parents[1] / "docs" / "native.md"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
PLAIN = "plain"
AIMS = {"mlp": 1.0, "lenet": 1.5}
"""What a step on IREE may take of ONNX Runtime's own kernels' time."""
BACKENDS = (PLAIN, "onnxruntime", "iree", "jax")


def perceptron(sizes: tuple[int, ...]) -> onward.TrainingModel:
    """Return a perceptron that Adam trains."""
    rng, nodes, weights, last = np.random.default_rng(0), [], {}, "x"
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weights[f"W{index}"] = rng.standard_normal((rows, columns)) * (2 / rows) ** 0.5
        weights[f"b{index}"] = np.zeros(columns)
        end = index == len(sizes) - 2
        nodes.append(helper.make_node("Gemm", [last, f"W{index}", f"b{index}"], ["y" if end else f"z{index}"]))
        if not end:
            nodes.append(helper.make_node("Relu", [f"z{index}"], [f"h{index}"]))
        last = f"h{index}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", sizes[0]])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", sizes[-1]])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onward.make_trainable(model, loss="cross_entropy", optimizer=onward.Adam(1e-3))


NETWORKS = {
    "mlp": ("MLP 784-256-128-10, Adam", lambda: perceptron((784, 256, 128, 10))),
    "lenet": ("LeNet (sample mnist)", lambda: build("mnist")),
    "digits": ("sample digits", lambda: build("digits")),
}


def measure(network: str, threads: int, rounds: int, batch: int) -> dict[str, Any]:
    """Return the milliseconds of one step on each backend, in turns, and what compilation takes."""
    model, rng = NETWORKS[network][1](), np.random.default_rng(0)
    trainers, first = {}, {}
    feeds: dict[str, np.ndarray] = {}
    for backend in BACKENDS:
        options: dict[str, Any] = {} if backend == "jax" else {"threads": threads}
        options |= {"cache": False} if backend == "iree" else {"native": False} if backend == PLAIN else {}
        started = time.perf_counter()
        trainer = onward.Trainer(model, backend="onnxruntime" if backend == PLAIN else backend, **options)
        for spec in (*trainer.program.inputs, *trainer.program.targets):
            shape = [d if isinstance(d, int) else batch for d in spec.shape]
            made = rng.integers(0, 10, shape) if spec.dtype == "int64" else rng.random(shape).astype(spec.dtype)
            feeds.setdefault(spec.name, made)
        trainer.step(feeds)
        first[backend] = time.perf_counter() - started
        trainers[backend] = trainer
    times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(rounds):
        for backend, trainer in trainers.items():
            started = time.perf_counter()
            trainer.step(feeds)
            times[backend].append((time.perf_counter() - started) * 1e3)
    quotients = {b: float(np.median(np.divide(times["iree"], times[b]))) for b in BACKENDS}
    return {
        "network": network,
        "threads": threads,
        "ms": {b: float(np.median(t)) for b, t in times.items()},
        "quotient": quotients,
        "seconds": first,
        "kB": sizes(trainers["iree"], feeds),
    }


def sizes(trainer: onward.Trainer, feeds: dict[str, np.ndarray]) -> float:
    """Return the kB of the step as a binary."""
    from onward.backends.iree.compiler import compile_cached
    from onward.backends.iree.static import static_model
    from onward.backends.iree.targets import find_target

    graph = trainer.program.first.step
    known = {**trainer.program.settings, **trainer.state, **feeds}
    model = static_model(graph, {n: np.shape(known[n]) for n in graph.input_names})
    limits = trainer.session._limits
    return len(compile_cached(model, "step", "the step", find_target("iree"), limits).code) / 1000


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as the table of docs/native.md."""
    headings = ("step", "threads", "ONNX Runtime ms", "with our kernels ms", "IREE ms", "JAX ms")
    headings += ("IREE / ONNX Runtime", "IREE / with our kernels", "first step of IREE, s", "of JAX, s", "binary kB")
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    for r in results:
        ms, seconds = r["ms"], r["seconds"]
        numbers = [f"{ms[b]:.2f}" for b in BACKENDS] + [f"{r['quotient'][b]:.2f}" for b in BACKENDS[:2]]
        numbers += [f"{seconds[b]:.1f}" for b in ("iree", "jax")] + [f"{r['kB']:.0f}"]
        lines.append(f"| {NETWORKS[r['network']][0]} | {r['threads']} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def aims(results: list[dict[str, Any]]) -> str:
    """Return a sentence about what was aimed at."""
    said = []
    for r in (r for r in results if r["network"] in AIMS):
        found, aim = r["quotient"][PLAIN], AIMS[r["network"]]
        verdict = "reached" if round(found, 2) <= aim else "**missed**"
        said.append(
            f"{NETWORKS[r['network']][0]} on {counted(r['threads'], 'thread')} {found:.2f} ({aim:g}: {verdict})"
        )
    return f"IREE / ONNX Runtime, aims in brackets: {'; '.join(said)}." if said else ""


def main() -> None:
    """Measure, print, and with --docs write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--docs", action="store_true", help="write the table into docs/native.md")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        warnings.simplefilter("ignore")
        (network,), (threads,) = given.networks, given.threads
        print(json.dumps(measure(network, threads, given.rounds, given.batch)))
        return
    results = []
    before, began = os.getloadavg()[0], time.monotonic()
    print(f"load before: {before:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        for network in given.networks:
            for threads in given.threads:
                cores = sorted(os.sched_getaffinity(0))[:threads]
                command = [sys.executable, __file__, "--worker", "--networks", network, "--threads", str(threads)]
                command += ["--rounds", str(given.rounds), "--batch", str(given.batch)]
                done = subprocess.run(
                    ["taskset", "-c", ",".join(map(str, cores)), *command],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    env={**os.environ, "ONWARD_CACHE": cache},
                )
                results.append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{network}, {threads}: done after {time.monotonic() - began:.0f} s", flush=True)
    about = (
        f"{given.rounds} rounds of {given.batch} samples, {time.strftime('%-d %B %Y')}, {report.machine()}; load "
        f'{before:.2f} before and {os.getloadavg()[0]:.2f} after, the benchmark included. "With our kernels" '
        "is ONNX Runtime with Onward's kernels in C, the default of that backend ([performance.md](performance.md))."
    )
    text = "\n\n".join(filter(None, (table(results), aims(results), about)))
    print(text)
    if given.docs:
        page = PAGE.read_text(encoding="utf-8")
        start, rest = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{start}{BEGIN}\n{text}\n{END}{rest}", encoding="utf-8")


if __name__ == "__main__":
    main()
