"""`Pass`: one change of a model, with its requirements; `Unit`: the model that passes change.

The upgrade of old files, the lowering to plain operators and the rewrites of each backend are passes.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

import onnx_ir as ir

from onward.autodiff.forms import Forms
from onward.autodiff.profile import DEFAULT
from onward.graph import walk
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import copy_graph, remove_dead_nodes
from onward.graph.schema import TRAINING_DOMAIN
from onward.graph.walk import all_names
from onward.model.readings import Reading
from onward.model.roles import EntryRoles
from onward.model.training_model import TrainingEntry, TrainingModel, is_gradient

CHECKED = False
"""Whether every fact is verified after every pass; the tests enable it."""


@dataclasses.dataclass(frozen=True)
class Fact:
    """A property of a unit that a pass establishes."""

    text: str
    holds: Callable[[Unit], bool]


INLINED = Fact("no calls of model-local functions", lambda unit: not unit.model.functions)
NO_GRADIENTS = Fact("no Gradient nodes", lambda unit: not any(is_gradient(n) for n in walk.all_nodes(unit.graph)))
NO_OPTIMIZERS = Fact(
    "no operators of the training domain",
    lambda unit: all(n.domain != TRAINING_DOMAIN for n in walk.all_nodes(unit.graph)),
)
STATE_AS_INPUTS = Fact("all state is graph inputs", lambda unit: all(v.const_value is None for v in unit.state))


@dataclasses.dataclass(frozen=True)
class Trace:
    """What one pass did."""

    unit: str
    name: str
    before: int
    after: int
    seconds: float


@dataclasses.dataclass
class Unit:
    """A model that passes change in place or replace; `training` is never the object of the caller."""

    training: TrainingModel
    name: str = ""
    entry: TrainingEntry | None = None
    """The training entry that the unit was made from."""
    roles: EntryRoles | None = None
    """The roles of the values of that entry."""
    readings: tuple[Reading, ...] = ()
    """What the loss of that entry reads."""
    model_outputs: tuple[str, ...] = ()
    """The outputs of the inference graph, which the unit computes under the same names."""
    data: list[Value] = dataclasses.field(default_factory=list)
    """The batch: inputs of the inference graph, then of the algorithm."""
    needs_batch: bool = True
    """Whether the graph keeps unused inputs of the batch, so that every step of a model takes the same batch."""
    settings: list[Value] = dataclasses.field(default_factory=list)
    """Inputs with a default, such as the learning rate."""
    state: list[Value] = dataclasses.field(default_factory=list)
    profile: str = DEFAULT
    """For which runtimes each gradient is lowered (`autodiff.profile`)."""
    forms: Forms | None = None
    """Which of its forms each gradient has, where a rule offers several; None: the usual ones."""
    saves_memory: bool = False
    """Whether `recompute` was asked for, without patterns: long attention runs in blocks (`passes/attention.py`)."""
    usual: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The sizes of free dimensions that were given with `recompute`, by name."""
    trains: bool = False
    """Whether the unit computes a training step: passes that are not safe for training are refused."""
    facts: set[Fact] = dataclasses.field(default_factory=set)
    gradients: dict[str, tuple[str, str] | None] = dataclasses.field(default_factory=dict)
    """Each gradient -> (y, x) where it is dy/dx with respect to a state x, else None; set when they are lowered."""
    next_random_step: Value | None = None
    """The random counter of the next step, where the unit draws random numbers."""
    trace: list[Trace] | None = None

    @property
    def model(self) -> ir.Model:
        return self.training.ir

    @property
    def graph(self) -> ir.Graph:
        return self.training.graph

    @property
    def opset(self) -> int:
        return self.training.opset

    @property
    def names(self) -> Names:
        """The names in use in the graph, including those that a pass adds through a `Builder`."""
        if self._names is None:
            self._names = Names(all_names(self.graph))
        return self._names

    _names: Names | None = dataclasses.field(default=None, repr=False)

    def builder(self, prefix: str = "") -> Builder:
        """Return a builder of nodes for this unit."""
        return Builder(self.opset, self.names, prefix=prefix)

    def values(self) -> dict[str, Value]:
        """Return the values of the top-level graph by name. Passes replace values and keep their names."""
        return ir.convenience.create_value_mapping(self.graph, include_subgraphs=False)

    def copy(self, name: str) -> Unit:
        """Return an independent copy of a unit without outputs; tensors are shared."""
        values: dict[Value, Value] = {}
        graph = copy_graph(self.graph, values)
        model = ir.Model(graph, ir_version=self.model.ir_version)
        return dataclasses.replace(
            self,
            training=TrainingModel(model),
            name=name,
            data=[values[v] for v in self.data],
            settings=[values[v] for v in self.settings],
            state=[values[v] for v in self.state],
            facts=set(self.facts),
            gradients=dict(self.gradients),
            next_random_step=None if self.next_random_step is None else values[self.next_random_step],
            _names=Names(self.names.taken),
        )


class PassError(RuntimeError):
    """A recipe is wrong: the requirements of a pass do not hold."""


class Pass(abc.ABC):
    """One change of a unit.

    `requires` holds before it, `ensures` after it. A pass that is not `safe_for_training` changes the results of a
    training step and never runs on one.
    """

    requires: ClassVar[tuple[Fact, ...]] = ()
    ensures: ClassVar[tuple[Fact, ...]] = ()
    safe_for_training: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The class name in words."""
        return "".join(f" {c.lower()}" if c.isupper() else c for c in type(self).__name__).strip()

    @abc.abstractmethod
    def run(self, unit: Unit) -> bool:
        """Change `unit`; return whether anything changed."""

    def __call__(self, unit: Unit) -> bool:
        """Run the pass and check its conditions; do nothing if everything that it ensures holds already.

        Raises:
            PassError: a requirement does not hold, or the pass broke a promise.
        """
        missing = [fact.text for fact in self.requires if fact not in unit.facts]
        if missing:
            raise PassError(f"pass `{self.name}` requires: {', '.join(missing)}")
        if unit.trains and not self.safe_for_training:
            raise PassError(f"pass `{self.name}` is not safe for training, and `{unit.name}` trains")
        if self.ensures and unit.facts.issuperset(self.ensures):
            return False
        before, began = _count(unit), time.perf_counter()
        modified = self.run(unit)
        if not isinstance(modified, bool):
            raise PassError(f"pass `{self.name}` must return whether it modified the unit")
        if unit.trace is not None:
            unit.trace.append(Trace(unit.name, self.name, before, _count(unit), time.perf_counter() - began))
        unit.facts.update(self.ensures)
        broken = [fact.text for fact in unit.facts if CHECKED and not fact.holds(unit)]
        if broken:
            raise PassError(f"after pass `{self.name}` this does not hold: {', '.join(broken)}")
        return modified


def run_passes(passes: Iterable[Pass], unit: Unit) -> bool:
    """Run the passes in order; return whether any of them modified the unit."""
    modified = [each(unit) for each in passes]
    return any(modified)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's cycle collector, which would repeatedly traverse the graph (30 % of the time)."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def rewrite_nodes(unit: Unit, op_type: str, rewrite: Callable[[ir.Node, Builder], bool]) -> bool:
    """Call `rewrite(node, op)` for every node of one operator; return whether one of the calls changed the graph.

    `rewrite` adds nodes and returns whether it did. Dead nodes are removed afterwards.
    """
    nodes = [n for n in unit.graph if n.op_type == op_type and n.domain == ""]
    changed = [rewrite(node, unit.builder(f"{node.name}/")) for node in nodes]
    if any(changed):
        remove_dead_nodes(unit.graph)
    return any(changed)


def _count(unit: Unit) -> int:
    """Return the number of nodes if the passes are traced."""
    return 0 if unit.trace is None else sum(1 for _ in walk.all_nodes(unit.graph))
