"""PyTorch: eager, with the fused optimizer, with the better number of threads, or compiled (which needs g++)."""

from __future__ import annotations

import time
from typing import Any

import torch
from workloads import LEARNING_RATE, MOMENTUM, Workload

from peers import THREADS, Batches, Files, Step

TRIES = 4  # steps with each number of threads, before one is chosen; `warm` in `PEERS` covers them


def fresh(workload: Workload) -> Any:
    """Return the workload's module in training mode, with the weights everybody starts from."""
    torch.manual_seed(0)
    return workload.build().train()


def optimizer_for(workload: Workload, module: Any, *, fused: bool = False) -> Any:
    if workload.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), lr=LEARNING_RATE, fused=fused or None)
    return torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=fused or None)


def build(
    workload: Workload,
    batches: Batches,
    files: Files,
    *,
    fused: bool = False,
    compiled: bool = False,
    tuned: bool = False,
) -> Step:
    torch.set_num_threads(THREADS)
    module = fresh(workload)
    optimizer = optimizer_for(workload, module, fused=fused)
    loss = torch.nn.CrossEntropyLoss()
    data = [(torch.from_numpy(x), torch.from_numpy(t)) for x, t in batches]
    forward = torch.compile(module) if compiled else module

    def step(k: int) -> float:
        x, t = data[k % len(data)]
        optimizer.zero_grad(set_to_none=True)
        value = loss(forward(x), t)
        value.backward()
        optimizer.step()
        return float(value.detach())

    if not tuned:
        return step
    seconds: dict[int, list[float]] = {threads: [] for threads in range(1, THREADS + 1)}

    def choose(k: int) -> float:
        """Train with the number of threads that has been the fastest; the first steps try all, in turns."""
        open_ = [threads for threads, found in seconds.items() if len(found) < TRIES]
        threads = min(open_, key=lambda n: len(seconds[n]), default=0)
        torch.set_num_threads(threads or min(seconds, key=lambda n: min(seconds[n])))
        began = time.perf_counter()
        loss = step(k)
        if threads:
            seconds[threads].append(time.perf_counter() - began)
        return loss

    return choose
