"""Export the batch counters of batch normalisation, and running statistics with `momentum=None`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
import torch

from onward.errors import ArgumentError, Diagnostic
from onward.graph import walk
from onward.graph.builder import Builder, Names
from onward.model.roles import BATCHES, Role, mark
from onward.model.training_model import TrainingModel

A214 = "A214"

_STAND_IN = 0.5  # the momentum during the export of such a module


@contextlib.contextmanager
def stand_in_momentum(module: torch.nn.Module) -> Iterator[dict[str, float | None]]:
    """Replace the momentum of some batch normalisations during the export; yield the original ones by name.

    With `momentum=None` PyTorch averages over all batches so far; torch.export cannot trace its batch counter. For
    float64, an ONNX attribute with its 32 bits is not exact enough.
    """
    found = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        and part.running_mean is not None
        and (part.momentum is None or part.running_mean.dtype == torch.float64)
    }
    true = {name: part.momentum for name, part in found.items()}
    for part in found.values():
        part.momentum = _STAND_IN
    try:
        yield true
    finally:
        for name, part in found.items():
            part.momentum = true[name]


def _calls(algorithm: ir.Graph, mean: ir.Value) -> int:
    """Return the number of batch normalisations in the training step that update the running mean."""
    return sum(n.op_type == "BatchNormalization" and n.inputs[3] is mean for n in algorithm)


def fix_running_statistics(model: TrainingModel, module: torch.nn.Module, replaced: Mapping[str, float | None]) -> None:
    """Count batches as PyTorch does (`num_batches_tracked`), and restore the original momenta."""
    entry = model.entries[0]
    algorithm = entry.algorithm
    assert algorithm is not None
    names = Names(walk.all_names(model.graph) | walk.all_names(algorithm))
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
        mark(counter, Role.STATE, slot=BATCHES)
        algorithm.register_initializer(counter)
        calls = _calls(algorithm, model.graph.initializers[f"{prefix}running_mean"])
        if calls > 1 and name in replaced:
            raise ArgumentError(
                Diagnostic(
                    A214,
                    f"a batch normalisation is called {calls} times in a step",
                    place=f"`{name or '(the module itself)'}` ({type(part).__name__})",
                    found="momentum=None" if replaced[name] is None else "float64",
                    hint="give it a momentum, such as 0.1" if replaced[name] is None else "use one for each call",
                )
            )
        following = op.Add(counter, calls)
        following.name, following.shape = names.unique(f"new/{label}"), ir.Shape([])
        entry.update_binding[label] = following.name
        algorithm.outputs.append(following)
        if name in replaced:
            momentum = replaced[name]
            for kind in ("running_mean", "running_var"):
                old = model.graph.initializers[prefix + kind]
                mixed = produced[entry.update_binding[prefix + kind]]
                # mixed = old + s (batch - old) with the stand-in s; new = old + m (batch - old) with the original m.
                # For momentum=None, m = 1 / count.
                change = op.Sub(mixed, old)
                if momentum is None:
                    new = op.Add(old, op.Div(change, op.Mul(op.Cast(following, to=old.dtype), _STAND_IN)))
                else:
                    new = op.Add(old, op.Mul(change, momentum / _STAND_IN))
                new.name, new.shape = names.unique(f"new/{prefix}{kind}/exact"), old.shape
                algorithm.outputs[list(algorithm.outputs).index(mixed)] = new
                entry.update_binding[prefix + kind] = new.name
    algorithm.extend(op.nodes)
