"""`Program`: a training model compiled to plain ONNX graphs, pure functions of (batch, state, settings)."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

_CLASS_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Name, element type (numpy name, or `bfloat16` …) and shape (int, symbol or None per dimension) of one value."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclasses.dataclass(frozen=True)
class StepGraph:
    """One training entry: its graph, and which output replaces which state."""

    name: str
    model: onnx.ModelProto
    replaces: Mapping[str, str]  # output name -> state name
    outputs: tuple[str, ...]  # what the caller sees: the loss first, then the model's outputs
    gradient_of: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    """In a graph of gradients: output -> (y, x), for dy/dx of a `y` in the graph by a state `x`."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Plain ONNX graphs and everything a loop needs to run them."""

    steps: Mapping[str, StepGraph]
    initialize: onnx.ModelProto | None
    infer: onnx.ModelProto
    evaluate: onnx.ModelProto | None  # of the first training entry
    inputs: tuple[TensorSpec, ...]  # of the inference graph
    targets: tuple[TensorSpec, ...]  # labels and the like: further inputs of the step
    settings: Mapping[str, np.ndarray]  # name -> default; may be fed at any step (learning_rate)
    state: Mapping[str, np.ndarray]  # initial values: parameters, moments, counters, random key
    parameters: tuple[str, ...]  # the trained part of `state`
    loss: str  # name of the loss output
    gradients: Mapping[str, StepGraph] = dataclasses.field(default_factory=dict)  # with split: batch -> gradients
    updates: Mapping[str, StepGraph] = dataclasses.field(default_factory=dict)  # with split: gradients -> new state
    evaluations: Mapping[str, onnx.ModelProto] = dataclasses.field(default_factory=dict)  # of the further entries
    totals: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # entry -> its loss over several batches
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> onnx.ModelProto:
        """The graph of the first training entry."""
        return next(iter(self.steps.values())).model

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs, then targets."""
        return tuple(s.name for s in (*self.inputs, *self.targets))

    def for_entry(self, entry: str | None) -> Program:
        """Return the program with one training entry alone: its targets, settings, loss and evaluation; all for None.

        The state stays whole: an entry may read weights that another one trains.
        """
        if entry is None or len(self.steps) == 1:
            return self
        step = self.steps[entry]
        read = {i.name for i in step.model.graph.input}
        return dataclasses.replace(
            self,
            steps={entry: step},
            evaluate=self.evaluations.get(entry, self.evaluate if entry == next(iter(self.steps)) else None),
            targets=tuple(t for t in self.targets if t.name in read),
            settings={name: value for name, value in self.settings.items() if name in read},
            loss=step.outputs[0],
            gradients={n: g for n, g in self.gradients.items() if n == entry},
            updates={n: u for n, u in self.updates.items() if n == entry},
            evaluations={},
            totals={n: t for n, t in self.totals.items() if n == entry},
        )

    @functools.cached_property
    def class_targets(self) -> dict[str, set[int]]:
        """The targets that a loss reads as class numbers, each with the numbers that mean "leave this one out"."""
        targets = {s.name for s in self.targets}
        found: dict[str, set[int]] = {}
        for graph in (m.graph for m in (self.evaluate, *(s.model for s in self.steps.values())) if m is not None):
            for node in graph.node:
                if node.op_type in _CLASS_LOSSES and node.domain in ("", "ai.onnx") and node.input[1] in targets:
                    ignored = {a.i for a in node.attribute if a.name == "ignore_index"}
                    found.setdefault(node.input[1], set()).update(ignored)
        return found

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the program as a directory that needs no Python (docs/program_format.md)."""
        from onward.compiler.package import write_program

        write_program(self, directory)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Program:
        """Return the program that `save` wrote, every file verified."""
        from onward.compiler.package import read_program

        return read_program(directory)


def total_names(program: Program) -> set[str]:
    """Return the outputs of the evaluate graphs that the expressions of `Program.totals` read."""
    found: set[str] = set()
    queue = list(program.totals.values())
    while queue:
        part = queue.pop()
        if isinstance(part, (list, tuple)):
            if part[0] in ("total", "value"):
                found.add(part[1])
            else:
                queue += part[1:]
    return found
