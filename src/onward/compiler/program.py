"""`Program`: a training model compiled to plain ONNX graphs, pure functions of (batch, state, settings)."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward import notebook
from onward.autodiff.profile import DEFAULT, PORTABLE
from onward.compiler.self_test import SelfTest
from onward.errors import ArgumentError, Diagnostic, Severity, named_node
from onward.graph.edit import copy_graph
from onward.model import serde
from onward.model.readings import Reading
from onward.model.training_model import TrainingModel
from onward.passes.recompute.settings import Estimate, Recompute, Store, Stored

M306 = "M306"
_CLASS_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Name, element type (numpy name, or `bfloat16` …) and shape (int, symbol or None per dimension) of one value."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    takes_nan: bool = dataclasses.field(default=False, compare=False, repr=False)
    """Whether NaN stands for a missing value in this input: the graph itself replaces or examines it."""
    also: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """Other names under which data may hold it: those that a training graph of ONNX 1.7 gave to this input."""

    def column_in(self, names: Collection[str]) -> str:
        """Return the one of its names that is in `names`: its own, else another one, else its own."""
        return self.name if self.name in names else next((n for n in self.also if n in names), self.name)


@dataclasses.dataclass(frozen=True, eq=False)
class PlainGraph:
    """One graph of plain operators, and the roles of its outputs. Do not change `model`; copy it."""

    name: str
    model: ir.Model
    outputs: tuple[str, ...] = ()
    """The outputs for the caller; in a step the loss first, then the model's outputs."""
    replaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Output -> the state that it replaces."""
    gradient_of: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    """In a graph of gradients: output -> (y, x), for dy/dx of a `y` in the graph with respect to a state `x`."""
    stands_for: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """In a step: output -> the output of the model that it is, in training mode."""
    totals: Any = None
    """In an evaluate graph: the loss of several batches as an expression over outputs (`loss_over_batches`)."""

    @property
    def opset(self) -> int:
        """The version of the default operator set."""
        return self.model.opset_imports[""]

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        """The inputs: batch, settings and state."""
        return tuple(v.name or "" for v in self.model.graph.inputs)

    @functools.cached_property
    def output_names(self) -> tuple[str, ...]:
        """All outputs, in the order of the graph."""
        return tuple(v.name or "" for v in self.model.graph.outputs)

    def proto(self) -> onnx.ModelProto:
        """Return the graph as a new `ModelProto`."""
        return serde.to_proto(TrainingModel(self.model))

    def copy_model(self) -> ir.Model:
        """Return a copy of the graph that may be changed; tensors are shared."""
        graph = copy_graph(self.model.graph)
        return ir.Model(graph, ir_version=self.model.ir_version, producer_name=self.model.producer_name)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One training entry: its graphs."""

    name: str
    step: PlainGraph
    evaluate: PlainGraph | None = None
    learning_rates: tuple[str, ...] = ()
    """The settings that are learning rates."""
    gradients: PlainGraph | None = None
    """With split: batch -> gradients."""
    update: PlainGraph | None = None
    """With split: gradients -> new state."""
    epochs: int | None = None
    """For how many epochs it trains, if it is one phase of a training."""
    rate: PlainGraph | None = None
    """Where the optimizer has a schedule: the number of updates so far -> the learning rate of the next one."""
    readings: tuple[Reading, ...] = ()
    """What the loss reads, with the output and the target that go with it; empty where that is not known."""
    loss_scale: str = ""
    """The state that multiplies the loss before it is differentiated; empty where none does."""

    @property
    def loss(self) -> str:
        """The name of the loss output."""
        return self.step.outputs[0] if self.step.outputs else ""

    @property
    def totals(self) -> Any:
        """How the losses of several batches are combined; None if the mean over samples is exact."""
        return None if self.evaluate is None else self.evaluate.totals


@dataclasses.dataclass(frozen=True)
class Program:
    """Plain ONNX graphs and everything a loop needs to run them."""

    entries: Mapping[str, Entry]
    infer_graph: PlainGraph
    inputs: tuple[TensorSpec, ...]  # of the inference graph
    initialize_graph: PlainGraph | None = None
    targets: tuple[TensorSpec, ...] = ()  # further inputs of the step, such as labels
    settings: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # name -> default, fed at any step
    state: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # parameters, moments, counters, key
    parameters: tuple[str, ...] = ()  # the trained values in `state`
    averages: Mapping[str, str] = dataclasses.field(default_factory=dict)  # parameter -> state that holds its average
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    core: bool = False  # whether its graphs have only core operators
    profile: str = DEFAULT  # `default` or `portable` (docs/portable.md)
    recompute: Recompute | None = None  # what the backward passes compute again (docs/training.md)
    estimates: Mapping[str, Estimate] = dataclasses.field(default_factory=dict)  # of it, by graph
    store: Store | None = None  # in which type values wait for the backward passes (docs/training.md)
    stored: Mapping[str, Stored] = dataclasses.field(default_factory=dict)  # what it does, by graph
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)  # forms of gradients (docs/tuning.md)
    self_test: SelfTest | None = None  # of a program that was read: what a step gives

    @property
    def first(self) -> Entry | None:
        """The first training entry; None for an inference model."""
        return next(iter(self.entries.values()), None)

    def graphs(self) -> list[PlainGraph]:
        """Return every graph: those of the entries in turn, then infer and initialize."""
        parts = [g for e in self.entries.values() for g in (e.step, e.gradients, e.update, e.evaluate, e.rate)]
        return [g for g in (*parts, self.infer_graph, self.initialize_graph) if g is not None]

    @functools.cached_property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What the deny-list names in a portable program and cannot be avoided, each with the runtimes it concerns.

        It is in the model itself. A program of the default profile has no warnings: nobody asked for other runtimes.
        """
        if self.profile != PORTABLE:
            return ()
        from onward.passes.portable.deny_list import denied

        found: dict[tuple[str, str], Diagnostic] = {}
        for graph in self.graphs():
            for each in denied(graph.model.graph):
                place = named_node(each.node)
                found.setdefault(
                    (each.entry.name, place),
                    Diagnostic(
                        M306,
                        f"{each.entry.what} is not safe on every runtime",
                        place=f"{place} of the graph `{graph.name}`",
                        found="; ".join(f"{r['runtime']} {r['versions']}: {r['effect']}" for r in each.entry.runtimes),
                        hint="run the self-test of the program on that runtime before you train (docs/portable.md)",
                        severity=Severity.WARNING,
                    ),
                )
        return tuple(found.values())

    @property
    def step(self) -> onnx.ModelProto:
        """The step of the first training entry, as a `ModelProto`."""
        if self.first is None:
            raise ArgumentError(
                Diagnostic("A101", "the model has no training entry", hint="use onward.make_trainable(...) first")
            )
        return self.first.step.proto()

    @property
    def steps(self) -> dict[str, PlainGraph]:
        """The step of each training entry, in the order of one iteration."""
        return {name: entry.step for name, entry in self.entries.items()}

    @property
    def evaluate(self) -> onnx.ModelProto | None:
        """The evaluation of the first training entry, as a `ModelProto`."""
        return None if self.first is None or self.first.evaluate is None else self.first.evaluate.proto()

    @property
    def infer(self) -> onnx.ModelProto:
        """The inference graph with its weights as inputs, as a `ModelProto`."""
        return self.infer_graph.proto()

    @property
    def initialize(self) -> onnx.ModelProto | None:
        """The initialisation, as a `ModelProto`; None where the model has none."""
        return None if self.initialize_graph is None else self.initialize_graph.proto()

    @property
    def loss(self) -> str:
        """The name of the first entry's loss output."""
        return "" if self.first is None else self.first.loss

    @property
    def learning_rates(self) -> tuple[str, ...]:
        """The settings that are learning rates, of all entries."""
        found = dict.fromkeys(name for entry in self.entries.values() for name in entry.learning_rates)
        return tuple(name for name in found if name in self.settings)

    @property
    def phases(self) -> dict[str, int]:
        """The entries that train one after the other, each with its number of epochs; empty for other models."""
        return {name: entry.epochs for name, entry in self.entries.items() if entry.epochs is not None}

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs, then targets."""
        return tuple(s.name for s in (*self.inputs, *self.targets))

    def for_entry(self, entry: str | None) -> Program:
        """Return the program with one training entry, its targets and settings; with None, all entries.

        The state stays complete, because an entry may read weights that another one trains.
        """
        if entry is None or len(self.entries) == 1:
            return self
        chosen = self.entries[entry]
        read = chosen.step.input_names
        return dataclasses.replace(
            self,
            entries={entry: chosen},
            targets=tuple(t for t in self.targets if t.name in read),
            settings={name: value for name, value in self.settings.items() if name in read},
        )

    @functools.cached_property
    def class_targets(self) -> dict[str, set[int]]:
        """The targets that a loss reads as class indices, each with the indices that it ignores."""
        targets = {s.name for s in self.targets}
        found: dict[str, set[int]] = {}
        for graph in (g for e in self.entries.values() for g in (e.evaluate, e.step) if g is not None):
            for node in graph.model.graph:
                if node.op_type in _CLASS_LOSSES and node.domain in ("", "ai.onnx"):
                    labels, ignored = node.inputs[1], node.attributes.get("ignore_index")
                    if labels is not None and labels.name in targets:
                        found.setdefault(labels.name or "", set()).update([] if ignored is None else [ignored.as_int()])
        return found

    def _repr_html_(self) -> str:
        graphs = [
            {
                "graph": g.name,
                "nodes": len(list(g.model.graph)),
                "inputs": len(g.input_names),
                "outputs": ", ".join(g.outputs) or f"{len(g.output_names)} states",
            }
            for g in self.graphs()
        ]
        told = {
            "inputs": ", ".join(_shown(s) for s in self.inputs),
            "targets": ", ".join(_shown(s) for s in self.targets),
            "settings": ", ".join(f"{n} = {np.asarray(v).tolist()}" for n, v in self.settings.items()),
            "parameters": f"{len(self.parameters)} of {len(self.state)} states",
        }
        title = f"Program {self.metadata.get('name', '')}".strip()
        return notebook.panel(title, notebook.facts(told), notebook.grid(graphs))

    def save(self, directory: str | os.PathLike[str], *, self_test: Mapping[str, Any] | bool = True) -> None:
        """Write the program as a directory that needs no Python (docs/program_format.md).

        It gets a self-test, with the batch `self_test` or one that is drawn; False leaves it out. ONNX Runtime computes
        what a step gives. Where no drawn batch gives a finite loss, a warning says so and there is none.

        Raises:
            ArgumentError: no self-test can be made with the given batch.
            ModelError: the directory cannot be written, or contains other files.
        """
        from onward.compiler.package import write_program

        write_program(self, directory, self_test=self_test)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Program:
        """Return the program that `save` wrote, after verifying every file."""
        from onward.compiler.package import read_program

        return read_program(directory)


def _shown(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype} [{', '.join('?' if d is None else str(d) for d in spec.shape)}]"


def total_names(expression: Any) -> set[str]:
    """Return the outputs of an evaluate graph that an expression of totals reads."""
    found: set[str] = set()
    queue = [expression]
    while queue:
        part = queue.pop()
        if isinstance(part, (list, tuple)):
            if part[0] in ("total", "value"):
                found.add(part[1])
            else:
                queue += part[1:]
    return found
