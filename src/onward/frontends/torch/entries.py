"""Combine several losses, each with its optimizer (a GAN), as training entries of one model."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onward.graph import edit
from onward.model.training_model import TrainingEntry, TrainingModel


def name_entry(model: TrainingModel, name: str) -> None:
    """Name the only entry of `model`, and prefix its own values (counter, moments, learning rate) with the name."""
    (entry,) = model.entries
    algorithm = entry.algorithm
    assert algorithm is not None
    algorithm.name = name
    for value in list(algorithm.initializers.values()):
        old = value.name or ""
        if old in model.graph.initializers:
            continue
        value.name = f"{name}/{old}"
        if value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
        for binding in (entry.update_binding, entry.initialization_binding):
            if old in binding:
                binding[value.name] = binding.pop(old)


def merge_entries(models: Mapping[str, TrainingModel]) -> TrainingModel:
    """Return one model with the entries of all `models`, which share the inference graph; changes the first model.

    The models come from one graph, so equal names mean equal values. Running statistics that several entries update
    are one state.
    """
    merged, *others = models.values()
    known = merged.values()
    for other in others:
        theirs = other.values()
        values: dict[ir.Value, ir.Value] = {v: known[n] for n, v in theirs.items() if n in known}
        (entry,) = other.entries
        assert entry.algorithm is not None
        merged.entries.append(
            TrainingEntry(
                edit.copy_graph(entry.algorithm, values),
                entry.initialization,
                entry.update_binding,
                entry.initialization_binding,
            )
        )
        merged.ir.functions.update(other.ir.functions)
        for domain, version in other.ir.opset_imports.items():
            merged.ir.opset_imports.setdefault(domain, version)
    return merged
