"""The recipes: the source, passes and outputs of each compiled graph.

    LOWERED            inference graph and algorithm, everything in plain operators; no outputs yet
    STEP               of LOWERED: batch and state to loss, outputs and new state
    GRADIENTS          of LOWERED: batch and state to loss, outputs, gradients, and state that changes without them
    UPDATE             of LOWERED, cut at the gradients: gradients and state to new state
    EVALUATE           the loss and the outputs in inference mode
    INFER              the inference graph
    INITIALIZE         the state to start from
    TRAINING_FORWARD   the outputs in training mode, and the state that a forward pass changes
    LOSS               the loss in training mode, and the state that a forward pass changes
    RATE               the learning rate of the next step: what is fed, or what a schedule makes of it
    TRIAL              the loss, its gradients, and the state that a forward pass changes, without dropout

Every graph then goes through the same passes, `FINISH`, with `core=True` through `CORE`, and in the portable profile
through `ANYWHERE`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

import onnx_ir as ir

from onward.compiler import sources
from onward.compiler.loss_over_batches import Expression, loss_totals
from onward.graph import edit, walk
from onward.graph.builder import Value
from onward.model.readings import is_cheap
from onward.model.roles import RANDOM_STEP, EntryRoles
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.passes.attention import BlockLongAttention
from onward.passes.base import Pass, Unit
from onward.passes.cleanup import InferShapes, MergeEqualNodes, RemoveDeadNodes, RemoveRoles, RemoveUnusedInputs
from onward.passes.core.lowering import LowerToCore
from onward.passes.gradients import KeepNeededGradients, LowerGradients
from onward.passes.inference_mode import UseInferenceValues
from onward.passes.inline import InlineFunctions, InlineFunctionsWithoutRules
from onward.passes.maps import MapsToTensors
from onward.passes.optimizers import LowerOptimizers
from onward.passes.pads import JoinPaddedParts, PadEveryAxis
from onward.passes.portable.rewrites import AvoidDenied
from onward.passes.randomness import LowerRandomness, RemoveDropout
from onward.passes.running_statistics import ProtectRunningStatistics
from onward.passes.scatter import ScatterInFloat32
from onward.passes.sequences import SequencesToTensors
from onward.passes.sizes import FoldSizes
from onward.passes.transposes import SelectBeforeTransposing, TransposeFactors


@dataclasses.dataclass(frozen=True)
class Output:
    """One output of a plain graph: its name, the value, and the state that it replaces (None: the caller sees it)."""

    name: str
    value: Value
    replaces: str | None = None
    stands_for: str = ""
    """In a step: the output of the model that this is, in training mode."""


@dataclasses.dataclass
class Outputs:
    """The outputs of a plain graph; `totals` says how they give the loss of several batches."""

    outputs: list[Output]
    totals: Expression = None


Source = Callable[[TrainingModel, TrainingEntry | None], Unit]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a plain graph is built: from a source or another recipe, by passes, with outputs."""

    name: str
    source: Source | Recipe
    passes: tuple[Pass, ...]
    outputs: Callable[[Unit], Outputs]
    trains: bool = True

    def then(self, *passes: Pass) -> Recipe:
        """Return the recipe with further passes, such as those of a backend, before the outputs are chosen."""
        return dataclasses.replace(self, passes=(*self.passes, *passes))


class CutAtGradients(Pass):
    """Make each gradient an input of the graph, which then no longer reads the batch."""

    def run(self, unit: Unit) -> bool:
        values = unit.values()
        for name in unit.gradients:
            gradient = values[name]
            stand_in = edit.copy_value(gradient)
            gradient.name = unit.names.unique(f"{name}/cut")
            gradient.replace_all_uses_with(stand_in)
            stand_in.name = name
            unit.graph.inputs.append(stand_in)
        unit.needs_batch = False
        return bool(unit.gradients)


# -- outputs ---------------------------------------------------------------------------------------------------------


def _entry(unit: Unit) -> tuple[TrainingEntry, EntryRoles]:
    assert unit.entry is not None
    assert unit.roles is not None
    return unit.entry, unit.roles


def _visible(unit: Unit) -> list[str]:
    """Return the outputs of the algorithm without a binding, the loss first; the loss itself if there are none."""
    entry, roles = _entry(unit)
    assert entry.algorithm is not None
    bound = set(entry.update_binding.values())
    names = [v.name or "" for v in entry.algorithm.outputs if v.name not in bound]
    return sorted(names, key=lambda name: name != roles.loss) or ([roles.loss] if roles.loss else [])


def _new_state(unit: Unit, values: dict[str, Value]) -> list[Output]:
    entry, _ = _entry(unit)
    found = [_next(state, values[value]) for state, value in entry.update_binding.items()]
    return found + ([] if unit.next_random_step is None else [_next(RANDOM_STEP, unit.next_random_step)])


def _next(state: str, value: Value) -> Output:
    return Output(f"next/{state}", value, state)


def _with_batch(unit: Unit, values: dict[str, Value], new_state: Sequence[Output], extra: Sequence[str]) -> Outputs:
    """Return the outputs for the caller of a step, with the model's outputs if it computes them, and the new state."""
    visible = _visible(unit)
    needed = walk.ancestors([o.value for o in new_state] + [values[n] for n in visible])
    visible += [n for n in unit.model_outputs if n not in visible and values[n].producer() in needed]
    _, roles = _entry(unit)
    twins = {old: new for new, old in roles.training.items() if new in visible}
    stands_for = {twins.get(n, n): n for n in unit.model_outputs if twins.get(n, n) in visible}
    outputs = [Output(n, values[n], stands_for=stands_for.get(n, "")) for n in visible]
    outputs += [o for o in _predictions(unit, values, needed) if o.stands_for not in stands_for.values()]
    return Outputs([*outputs, *(Output(n, values[n]) for n in extra), *new_state])


def _predictions(unit: Unit, values: dict[str, Value], computed: Collection[ir.Node]) -> list[Output]:
    """Return the outputs that derive from what the loss reads, such as its Softmax, in training mode, for metrics.

    `computed` are the nodes that the step has anyway; what an output adds to them must be cheap.
    """
    _, roles = _entry(unit)
    twins = {old: new for new, old in roles.training.items()}
    found: list[Output] = []
    for reading in unit.readings:
        if reading.output in ("", reading.value) or reading.value not in values or reading.output not in values:
            continue
        start, end = values[reading.value], values[reading.output]
        between = walk.ancestors([end], stop=[start])
        nodes = [n for n in unit.graph if n in between]
        twin = values.get(twins.get(reading.value, ""), start)
        again = set() if twin is start else _readers(nodes, start)
        if not all(is_cheap(node) for node in nodes if node in again or node not in computed):
            continue
        if twin is start:
            found.append(Output(reading.output, end, stands_for=reading.output))
            continue
        copied = {start: twin}
        unit.graph.extend(edit.copy_nodes([n for n in nodes if n in again], copied, names=unit.names, prefix="train/"))
        found.append(Output(copied[end].name or "", copied[end], stands_for=reading.output))
    return found


def _readers(nodes: Sequence[ir.Node], value: Value) -> set[ir.Node]:
    """Return the nodes, in the order of the graph, that read the value or what derives from it."""
    derived, found = {value}, set()
    for node in nodes:
        if not derived.isdisjoint(walk.reads(node)):
            derived.update(node.outputs)
            found.add(node)
    return found


def _step(unit: Unit) -> Outputs:
    values = unit.values()
    return _with_batch(unit, values, _new_state(unit, values), [])


def _gradients(unit: Unit) -> Outputs:
    values = unit.values()
    early = _changes_without_gradients(unit, values)
    # A scaled loss: only a framework that differentiates by itself reads it (`backends/graph/forward.py`).
    ys = dict.fromkeys(pair[0] for pair in unit.gradients.values() if pair is not None)
    unread = [y for y in ys if y in values and not values[y].uses() and y not in _visible(unit)]
    new_state = [o for o in _new_state(unit, values) if o.replaces in early]
    return _with_batch(unit, values, new_state, [*unread, *unit.gradients])


def _update(unit: Unit) -> Outputs:
    values = unit.values()
    early = _changes_without_gradients(unit, values)
    return Outputs([o for o in _new_state(unit, values) if o.replaces not in early])


def _changes_without_gradients(unit: Unit, values: dict[str, Value]) -> set[str]:
    """Return the state that the batch changes and the update does not: running statistics, the random step."""
    behind_gradient, behind_batch = {values[g] for g in unit.gradients}, set(unit.data)
    for node in unit.graph:
        read = walk.reads(node)
        for reached in (behind_gradient, behind_batch):
            if not reached.isdisjoint(read):
                reached.update(node.outputs)
    changing = behind_batch - behind_gradient
    return {RANDOM_STEP, *(o.replaces or "" for o in _new_state(unit, values) if o.value in changing)}


def _evaluate(unit: Unit) -> Outputs:
    _, roles = _entry(unit)
    values = unit.values()
    first, *others = _visible(unit) or [""]
    own = [n for n in (first, *others) if n and n not in unit.model_outputs]
    own = [n for n in own if n == first or roles.training.get(n) not in unit.model_outputs]
    twin = {**roles.training, **({roles.loss: roles.evaluation} if roles.evaluation in values else {})}
    outputs = [Output(n, values[twin.get(n, n)]) for n in own]
    outputs += [Output(n, values[n]) for n in unit.model_outputs]
    found = loss_totals(unit, values[twin.get(first, first)]) if first else None
    if found is None:
        return Outputs(outputs)
    return Outputs(outputs + [Output(name, value) for name, value in found.outputs], found.expression)


def _infer(unit: Unit) -> Outputs:
    values = unit.values()
    return Outputs([Output(n, values[n]) for n in unit.model_outputs])


def _initialize(unit: Unit) -> Outputs:
    assert unit.entry is not None
    values = unit.values()
    return Outputs([_next(state, values[name]) for state, name in unit.entry.initialization_binding.items()])


def _forward_state(unit: Unit, values: dict[str, Value]) -> list[Output]:
    _, roles = _entry(unit)
    return [o for o in _new_state(unit, values) if o.replaces in (*roles.forward_state, RANDOM_STEP)]


def _training_forward(unit: Unit) -> Outputs:
    _, roles = _entry(unit)
    values = unit.values()
    stands_for = {old: new for new, old in roles.training.items()}
    seen = [Output(n, values[stands_for.get(n, n)]) for n in unit.model_outputs]
    return Outputs(seen + _forward_state(unit, values))


def _loss(unit: Unit) -> Outputs:
    _, roles = _entry(unit)
    values = unit.values()
    return Outputs([Output(roles.loss, values[roles.loss]), *_forward_state(unit, values)])


def _rate(unit: Unit) -> Outputs:
    _, roles = _entry(unit)
    unit.needs_batch = False
    names = [name for name in (roles.scheduled_rate, *roles.learning_rates) if name][:1]
    return Outputs([Output("rate", unit.values()[name]) for name in names])


def _trial(unit: Unit) -> Outputs:
    _, roles = _entry(unit)
    values = unit.values()
    return Outputs([*(Output(n, values[n]) for n in [roles.loss, *roles.gradients]), *_forward_state(unit, values)])


def _nothing(unit: Unit) -> Outputs:
    return Outputs([])


# -- recipes ---------------------------------------------------------------------------------------------------------

_PREPARE = (InlineFunctionsWithoutRules(), SequencesToTensors(), MapsToTensors())
_PLAIN = (LowerGradients(), InlineFunctions(), LowerOptimizers())

_SIMPLER = (FoldSizes(), SelectBeforeTransposing(), BlockLongAttention())

LOWERED = Recipe("lowered", sources.combined, (*_PREPARE, LowerRandomness(), *_SIMPLER, *_PLAIN), _nothing)
STEP = Recipe("step", LOWERED, (), _step)
GRADIENTS = Recipe("gradients", LOWERED, (), _gradients)
UPDATE = Recipe("update", LOWERED, (CutAtGradients(),), _update)
EVALUATE = Recipe(
    "evaluate", sources.combined, (*_PREPARE, UseInferenceValues(), RemoveDropout()), _evaluate, trains=False
)
INFER = Recipe("infer", sources.inference, _PREPARE, _infer, trains=False)
_DRAW = (InlineFunctions(), LowerRandomness(advance=False))
INITIALIZE = Recipe("initialize", sources.initialization, _DRAW, _initialize)
TRAINING_FORWARD = Recipe("training forward", sources.combined, (*_PREPARE, LowerRandomness()), _training_forward)
LOSS = Recipe("loss", sources.combined, (*_PREPARE, LowerRandomness()), _loss)
RATE = Recipe("rate", sources.combined, (*_PREPARE, UseInferenceValues(), RemoveDropout()), _rate, trains=False)
TRIAL = Recipe("trial", sources.combined, (*_PREPARE, RemoveDropout()), _trial, trains=False)

RECIPES = (LOWERED, STEP, GRADIENTS, UPDATE, EVALUATE, INFER, INITIALIZE, TRAINING_FORWARD, LOSS, RATE, TRIAL)

FINISH: tuple[Pass, ...] = (
    KeepNeededGradients(),
    *_PLAIN,
    RemoveDeadNodes(),
    PadEveryAxis(),
    JoinPaddedParts(),
    TransposeFactors(),
    ScatterInFloat32(),
    MergeEqualNodes(),
    ProtectRunningStatistics(),
    RemoveUnusedInputs(),
    InferShapes(),
    RemoveRoles(),
)
RECOMPUTED = (STEP.name, GRADIENTS.name)
"""The graphs with a forward and a backward pass, to which `recompute` and `store` apply, behind all other passes."""
CORE: tuple[Pass, ...] = (LowerToCore(), RemoveDeadNodes(), MergeEqualNodes(), RemoveUnusedInputs(), InferShapes())
"""After `FINISH`, where only core operators are wanted."""
ANYWHERE: tuple[Pass, ...] = (AvoidDenied(), RemoveDeadNodes(), MergeEqualNodes(), RemoveUnusedInputs(), InferShapes())
"""After these, in the portable profile."""
