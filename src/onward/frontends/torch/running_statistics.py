"""Batch normalisation's counters, and running statistics that are plain averages (`momentum=None`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import torch

from onward.model import graphs
from onward.model.builder import Builder, Names
from onward.model.training_model import TrainingModel

_STAND_IN = 0.5  # the momentum under which a module with momentum=None is captured


@contextlib.contextmanager
def track_plain_average(module: torch.nn.Module) -> Iterator[list[str]]:
    """Give modules with `momentum=None` a momentum for the time of the capture; yield their names.

    PyTorch then averages over all batches so far, with a factor that it reads from a counter; torch.export cannot
    follow that.
    """
    found = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.momentum is None
    ]
    for _, part in found:
        part.momentum = _STAND_IN
    try:
        yield [name for name, _ in found]
    finally:
        for _, part in found:
            part.momentum = None


def fix_running_statistics(model: TrainingModel, module: torch.nn.Module, averaged: list[str]) -> None:
    """Count batches as PyTorch does (`num_batches_tracked`), and turn stand-in momenta into plain averages."""
    entry = model.entries[0]
    algorithm = entry.algorithm
    assert algorithm is not None
    names = Names(graphs.all_names(model.graph) | graphs.all_names(algorithm))
    op = Builder(model.opset, names)
    produced = {v.name: v for n in algorithm for v in n.outputs}
    for name, part in module.named_modules():
        if not isinstance(part, torch.nn.modules.batchnorm._BatchNorm) or part.num_batches_tracked is None:
            continue
        prefix = f"{name}." if name else ""
        if f"{prefix}running_mean" not in entry.update_binding:
            continue
        array = part.num_batches_tracked.detach().cpu().numpy().astype(np.int64).reshape(())
        label = f"{prefix}num_batches_tracked"
        counter = ir.Value(
            name=names.unique(label),
            type=ir.TensorType(ir.DataType.INT64),
            shape=ir.Shape([]),
            const_value=ir.tensor(array, name=label),
        )
        algorithm.register_initializer(counter)
        following = op.Add(counter, 1)
        following.name, following.shape = names.unique(f"new/{label}"), ir.Shape([])
        entry.update_binding[label] = following.name
        algorithm.outputs.append(following)
        if name in averaged:
            for kind in ("running_mean", "running_var"):
                old = model.graph.initializers[prefix + kind]
                mixed = produced[entry.update_binding[prefix + kind]]
                # mixed = (1 - m) old + m batch, so batch = old + (mixed - old) / m; new = old + (batch - old) / count
                change = op.Div(op.Sub(mixed, old), op.Mul(op.Cast(following, to=old.dtype), _STAND_IN))
                new = op.Add(old, change)
                new.name, new.shape = names.unique(f"new/{prefix}{kind}/average"), old.shape
                algorithm.outputs[list(algorithm.outputs).index(mixed)] = new
                entry.update_binding[prefix + kind] = new.name
    algorithm.extend(op.nodes)
