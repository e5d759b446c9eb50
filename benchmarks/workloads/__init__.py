"""The workloads of `make bench`, one file each; every peer gets the same network, data and start."""

from __future__ import annotations

from workloads import embedding, lenet, mlp, mobilenet, recurrent, resnet18, transformer, unet
from workloads.base import CLASSES, LEARNING_RATE, MOMENTUM, Workload

__all__ = ["CLASSES", "LEARNING_RATE", "MOMENTUM", "WORKLOADS", "Workload", "find"]

FAMILIES = (mlp, lenet, embedding, transformer, recurrent, mobilenet, resnet18, unet)
WORKLOADS = {w.name: w for family in FAMILIES for w in family.WORKLOADS}


def find(name: str) -> Workload:
    """Return the workload of that name; `mlp:64x512x2` is a perceptron of that batch, width and depth."""
    if name.startswith("mlp:"):
        return mlp.sized(*map(int, name.removeprefix("mlp:").split("x")))
    return WORKLOADS[name]
