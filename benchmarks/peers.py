"""One peer on one workload: `build()` makes it ready, `step(k)` trains on batch k and returns the loss.

Run as a worker (`python peers.py PEER WORKLOAD`), one process each, it answers commands on stdin with JSON lines, so
that peers can be timed in turn in one run without their thread pools meeting.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from workloads import WORKLOADS, Workload, batches

Step = Callable[[int], float]


def _torch(workload: Workload, *, fused: bool = False, compiled: bool = False) -> Step:
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    module = workload.build().train()
    if workload.optimizer == "adam":
        optimizer: Any = torch.optim.Adam(module.parameters(), lr=1e-3, fused=fused or None)
    else:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9, fused=fused or None)
    loss = torch.nn.CrossEntropyLoss()
    data = [(tuple(torch.from_numpy(a) for a in x), torch.from_numpy(t)) for x, t in batches(workload)]
    forward = torch.compile(module) if compiled else module

    def step(k: int) -> float:
        x, t = data[k % len(data)]
        optimizer.zero_grad(set_to_none=True)
        value = loss(forward(*x), t)
        value.backward()
        optimizer.step()
        return float(value.detach())

    return step


def model_file(name: str) -> Path:
    """Return where the workload's ONNX training file is; `run.py` has it exported first, in a process of its own."""
    return Path(__file__).parent / "results" / f"{name}.train.onnx"


def export(name: str) -> None:
    """Write the workload as an ONNX training file."""
    import torch

    import onward

    workload = WORKLOADS[name]
    torch.manual_seed(0)
    module = workload.build().train()
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    options = {"lr": 1e-3, **({"momentum": 0.9} if workload.optimizer == "sgd" else {})}
    x, t = batches(workload, 1)[0]
    model = onward.from_torch(
        module, loss=torch.nn.CrossEntropyLoss(), optimizer=kinds[workload.optimizer](module.parameters(), **options),
        example_inputs=tuple(torch.from_numpy(a) for a in x), example_targets=torch.from_numpy(t),
    )  # fmt: skip
    onward.save(model, model_file(name))


def _onward(workload: Workload, *, fused: bool | None = None) -> Step:
    """Train the ONNX file, with no framework in the process."""
    import onward
    from onward.backends import open_session

    program = onward.compile(model_file(workload.name))
    session = open_session(program, "onnxruntime", threads=THREADS, fused=fused)
    names = program.input_names
    data = [dict(zip(names, [*x, t], strict=True)) for x, t in batches(workload)]
    return lambda k: float(session.step(data[k % len(data)])["loss"])


PEERS: dict[str, Callable[[Workload], Step]] = {
    "onward": lambda w: _onward(w),
    "onward plain": lambda w: _onward(w, fused=False),
    "torch eager": lambda w: _torch(w),
    "torch fused": lambda w: _torch(w, fused=True),
    "torch.compile": lambda w: _torch(w, fused=True, compiled=True),
}
THREADS = 2
START = [0.0]


def gemm_peak() -> float:
    """Return the machine's float32 matrix-product rate in GFLOPS, the best of several products of 1024³."""
    a = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    best = 0.0
    for _ in range(20):
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began) / 1e9)
    return best


def main() -> None:
    peer, name = sys.argv[1:3]
    if peer == "--export":
        export(name)
        return
    START[0] = time.perf_counter()
    step = PEERS[peer](WORKLOADS[name])
    loss = step(0)
    print(json.dumps({"first": time.perf_counter() - START[0], "loss": loss}), flush=True)
    k = 1
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            began = time.perf_counter()
            loss = step(k)
            times.append(time.perf_counter() - began)
            k += 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"times": times, "loss": loss, "peak": peak, "steps": k}), flush=True)


if __name__ == "__main__":
    main()
