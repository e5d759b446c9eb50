"""PyTorch: eager, with the fused optimizer, or compiled (which needs a C++ compiler: `apt-get install g++`)."""

from __future__ import annotations

from typing import Any

import torch
from workloads import LEARNING_RATE, MOMENTUM, Workload

from peers import THREADS, Batches, Files, Step


def fresh(workload: Workload) -> Any:
    """Return the workload's module in training mode, with the weights everybody starts from."""
    torch.manual_seed(0)
    return workload.build().train()


def optimizer_for(workload: Workload, module: Any, *, fused: bool = False) -> Any:
    if workload.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), lr=LEARNING_RATE, fused=fused or None)
    return torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=fused or None)


def build(workload: Workload, batches: Batches, files: Files, *, fused: bool = False, compiled: bool = False) -> Step:
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

    return step
