"""A training model in the parts that Keras trains with: a forward pass, a loss of it, and an optimizer of gradients.

Nothing here depends on Keras or on its backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onward.backends.graph.forward import ForwardPart, why_not_graphs
from onward.backends.graph.loss import WeightsAsInputs
from onward.compiler.compile import Compiler, settings_of, state_of
from onward.compiler.program import PlainGraph, TensorSpec
from onward.compiler.recipes import EVALUATE, GRADIENTS, INFER, TRAINING_FORWARD, UPDATE
from onward.errors import ArgumentError, Diagnostic
from onward.graph import edit, shapes, walk
from onward.model.roles import RANDOM_KEY, RANDOM_STEP, STEP, EntryRoles
from onward.model.training_model import FLOAT_TYPES, TrainingEntry, TrainingModel

A248 = "A248"


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some values of a graph: what an interpreter computes from its inputs."""

    graph: ir.Graph
    opset: int
    outputs: tuple[str, ...]

    @property
    def input_names(self) -> list[str]:
        """The inputs of the whole graph; some may not be needed."""
        return [v.name or "" for v in self.graph.inputs]

    def wanted(self) -> list[ir.Value]:
        """Return the values to compute."""
        known = {v.name: v for v in [*self.graph.inputs, *(v for n in self.graph for v in n.outputs)]}
        return [known[name] for name in self.outputs]


@dataclasses.dataclass(frozen=True)
class Training:
    """The forward pass and the loss of a training step."""

    forward: Piece
    predictions: Mapping[str, str]
    """Output of the model -> value of `forward`, or of `rest`."""
    rest: Piece | None
    """Outputs of the model in training mode that the step itself does not compute."""
    forward_state: Mapping[str, str]
    """Value of `forward` -> the state that it replaces."""
    counters: Piece | None
    counted: Mapping[str, str]
    """Value of `counters` -> the state that it replaces: what changes in each step, whatever the batch is."""
    carried: tuple[str, ...]
    """Values of `forward`, and old values of state and inputs, that the loss reads."""
    loss: Piece
    y: str
    """What is differentiated."""
    reported: str
    """The loss that the step reports."""
    loss_state: Mapping[str, str]
    gradients: Mapping[str, str]
    """Value of `loss` -> parameter, where the backward pass is the file's own; else the framework differentiates."""


@dataclasses.dataclass(frozen=True)
class Update:
    """The optimizer: from gradients to new parameters and new state."""

    graph: PlainGraph
    gradients: Mapping[str, str]
    """Input of the graph -> parameter."""
    held: Mapping[str, np.ndarray]
    """State and settings that the optimizer keeps."""
    trained: tuple[str, ...]
    """What it replaces in the model, in the order of the model's trainable variables."""
    learning_rates: tuple[str, ...]
    step: str
    """The state that counts the updates; empty where there is none."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of one training entry, or of a model without one."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    targets: tuple[TensorSpec, ...]
    infer: PlainGraph
    evaluate: PlainGraph | None
    training: Training | None
    update: Update | None
    trainable: Mapping[str, np.ndarray]
    kept: Mapping[str, np.ndarray]
    """The other variables of the model: frozen weights, running statistics, counters, the random key."""
    ranked: bool = True
    """Whether the number of axes of every output is known."""


def build_parts(model: TrainingModel, entry: TrainingEntry | None, seed: int) -> Parts:
    """Return the parts of a normalised model.

    Raises:
        ArgumentError: the step is not one of loss, gradients and optimizer.
    """
    compiler = Compiler(model)
    weights = WeightsAsInputs(model.graph.initializers)
    infer = compiler.build(INFER.then(weights))
    specs = _specs(infer, model)
    ranked = all(shapes.dims(v) is not None for v in infer.model.graph.outputs)
    if entry is None:
        _check_types([*specs[0], *specs[1]])
        values = _known(model, seed, infer.input_names)
        return Parts(*specs, (), infer, None, None, None, {}, values, ranked)
    roles = compiler.roles(entry)
    evaluate = compiler.build(EVALUATE.then(weights), entry)
    gradients = compiler.build(GRADIENTS.then(weights), entry)
    update = compiler.build(UPDATE, entry)
    targets = tuple(_target_specs(entry))
    _check_types([*specs[0], *specs[1], *targets])
    batch = {s.name for s in (*specs[0], *targets)}
    owned = _Ownership(model, (infer, evaluate, gradients), update, batch)
    _check_update(gradients, update, owned, roles, batch)
    training = _training(compiler, entry, weights, gradients, update, owned, batch)
    values = _known(model, seed, [*owned.model, *owned.optimizer])
    optimizer = Update(
        update,
        _gradients_of(gradients, roles, update),
        {name: values[name] for name in owned.optimizer},
        tuple(owned.trainable),
        tuple(n for n in roles.learning_rates if n in owned.optimizer),
        next((n for n in [roles.slots.get((STEP, ""), "")] if n in owned.optimizer), ""),
    )
    return Parts(
        *specs,
        targets,
        infer,
        evaluate,
        training,
        optimizer,
        {name: values[name] for name in owned.trainable},
        {name: values[name] for name in owned.model if name not in owned.trainable},
        ranked,
    )


# -- who owns what ---------------------------------------------------------------------------------------------------


class _Ownership:
    """Which variables are the model's and which the optimizer's, and what the optimizer changes in the model."""

    def __init__(
        self, model: TrainingModel, forward: Iterable[PlainGraph], update: PlainGraph, batch: Collection[str]
    ) -> None:
        graphs = list(forward)
        bound = {*update.replaces.values(), *(s for g in graphs for s in g.replaces.values())}
        read = {n for g in graphs for n in g.input_names if n not in batch}
        written = {s for g in graphs for s in g.replaces.values()}
        stored = [n for n, v in model.graph.initializers.items() if n in bound or v.dtype in FLOAT_TYPES]
        self.model = list(dict.fromkeys([*stored, *sorted(read | written)]))
        self.counted = self._without_gradients(update, model)
        changed = [s for s in update.replaces.values() if s in self.model and s not in self.counted.values()]
        first = [n for n in model.parameters if n in changed]
        self.trainable = [*first, *(n for n in changed if n not in first)]
        given = {n for g in graphs for n in g.outputs}
        needed = [*update.input_names, *update.replaces.values()]
        self.optimizer = [n for n in dict.fromkeys(needed) if n not in (*self.trainable, *given, *batch)]
        self.optimizer = [n for n in self.optimizer if n not in self.counted.values()]

    def _without_gradients(self, update: PlainGraph, model: TrainingModel) -> dict[str, str]:
        """Return the outputs of the update that replace variables of the model by counting."""
        outputs = {v.name or "": v for v in update.model.graph.outputs}
        counters = {}
        for output, state in update.replaces.items():
            if state not in self.model or state in model.parameters:
                continue
            behind = [outputs[output], *(v for n in walk.ancestors([outputs[output]]) for v in walk.reads(n))]
            inputs = {v.name for v in behind if v.producer() is None and v.name in update.input_names}
            if inputs <= {state}:
                counters[output] = state
        return counters


def _known(model: TrainingModel, seed: int, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the values of initializers, of settings, and of the random key and step."""
    known = {n: v for n, v in model.initializers().items() if v.const_value is not None}
    random = {k: v for k, v in state_of(model, seed, draws=True).items() if k in (RANDOM_KEY, RANDOM_STEP)}
    settings = settings_of(model)
    found: dict[str, np.ndarray] = {}
    for name in names:
        if name in known:
            tensor = known[name].const_value
            assert tensor is not None
            found[name] = np.asarray(tensor.numpy())
        elif name in settings or name in random:
            found[name] = settings.get(name, random.get(name))  # type: ignore[assignment]
    return found


def _gradients_of(gradients: PlainGraph, roles: EntryRoles, update: PlainGraph) -> dict[str, str]:
    known = {**roles.gradients, **{g: x for g, (_, x) in gradients.gradient_of.items()}}
    return {n: known[n] for n in update.input_names if n in gradients.outputs and n in known}


# -- what Keras cannot do --------------------------------------------------------------------------------------------

_HINT = "train it with onward.Trainer(model, backend=...), or with the module of onward.to_tensorflow(model)"


def _check_update(
    gradients: PlainGraph, update: PlainGraph, owned: _Ownership, roles: EntryRoles, batch: Collection[str]
) -> None:
    """Raise unless the update is an optimizer: a function of one gradient for each parameter, and of its own state."""
    known = _gradients_of(gradients, roles, update)
    others = [n for n in update.input_names if n not in known and (n in gradients.outputs or n in batch)]
    forward = {*gradients.replaces.values(), *owned.counted.values()} - {RANDOM_STEP}
    others += [n for n in update.input_names if n in forward]
    strange = [x for x in known.values() if x not in owned.trainable]
    twice = sorted({x for x in known.values() if list(known.values()).count(x) > 1})
    problems = []
    if others:
        problems.append(("reads more than gradients and its own state", others))
    if strange:
        problems.append(("reads gradients of values that it does not train", strange))
    if twice:
        problems.append(("reads several gradients of one parameter", twice))
    if not owned.trainable:
        problems.append(("trains nothing", [gradients.name]))
    if problems:
        raise ArgumentError(
            [
                Diagnostic(
                    A248,
                    f"Keras cannot run this training step: its update {problem}",
                    place=f"entry `{gradients.name.removesuffix(' gradients')}`",
                    found=", ".join(f"`{n}`" for n in names[:5]) + ", …" * (len(names) > 5),
                    needed="a loss, one gradient for each parameter, and an optimizer",
                    hint=_HINT,
                )
                for problem, names in problems
            ]
        )


_KINDS = {"unknown": "a sequence, or a tensor whose number of axes is not known"}


def _check_types(specs: Iterable[TensorSpec]) -> None:
    strange = [s for s in specs if s.dtype in ("unknown", "object") or s.dtype.startswith(("<U", "str"))]
    if strange:
        raise ArgumentError(
            Diagnostic(
                A248,
                "Keras takes and gives tensors of numbers with a known number of axes only",
                found=", ".join(f"`{s.name}`: {_KINDS.get(s.dtype, 'strings')}" for s in strange),
                hint=_HINT,
            )
        )


# -- the graphs ------------------------------------------------------------------------------------------------------


def _training(
    compiler: Compiler,
    entry: TrainingEntry,
    weights: WeightsAsInputs,
    gradients: PlainGraph,
    update: PlainGraph,
    owned: _Ownership,
    batch: Collection[str],
) -> Training:
    outputs = compiler.model.outputs
    counters = Piece(update.copy_model().graph, update.opset, tuple(owned.counted)) if owned.counted else None
    written = bool(why_not_graphs(gradients, update))
    twins = {old: new for new, old in gradients.stands_for.items()}
    missing = [name for name in outputs if name not in twins]
    rest = None
    if written or missing:
        whole = compiler.build(TRAINING_FORWARD.then(weights), entry)
        rest = Piece(whole.copy_model().graph, whole.opset, tuple(missing))
    targets = {n for n in batch if n not in compiler.model.inputs}
    reported = gradients.outputs[0] if gradients.outputs else ""
    if written:
        found = _gradients_of(gradients, compiler.roles(entry), update)
        return _written(compiler.model.outputs, whole, gradients, found, counters, owned, targets)
    part = ForwardPart(gradients)
    late = _behind(part.graph, targets)
    state_early = {o: s for o, s in gradients.replaces.items() if o not in late}
    state_late = {o: s for o, s in gradients.replaces.items() if o in late}
    wanted = list(dict.fromkeys([reported or part.y, part.y, *state_late]))
    carried = _frontier(part.graph, wanted, late)
    predictions = {name: twins.get(name, name) for name in outputs}
    kept = [v for name, v in predictions.items() if name not in missing]
    early = list(dict.fromkeys([*kept, *state_early, *(n for n in carried if n not in part.input_names)]))
    return Training(
        forward=Piece(part.graph, part.opset, tuple(early)),
        predictions=predictions,
        rest=rest,
        forward_state=state_early,
        counters=counters,
        counted=owned.counted,
        carried=tuple(carried),
        loss=Piece(_cut(gradients.copy_model().graph, carried), part.opset, tuple(wanted)),
        y=part.y,
        reported=reported or part.y,
        loss_state=state_late,
        gradients={},
    )


def _written(
    outputs: Iterable[str],
    forward: PlainGraph,
    gradients: PlainGraph,
    found: Mapping[str, str],
    counters: Piece | None,
    owned: _Ownership,
    targets: Collection[str],
) -> Training:
    """Return the parts of a step whose backward pass is the file's own: the loss is the whole gradients graph."""
    state = {o: s for o, s in forward.replaces.items() if s in gradients.replaces.values()}
    later = {o: s for o, s in gradients.replaces.items() if s not in state.values()}
    loss = gradients.outputs[0]
    return Training(
        forward=Piece(forward.copy_model().graph, forward.opset, (*forward.outputs, *state)),
        predictions={name: name for name in outputs},
        rest=None,
        forward_state=state,
        counters=counters,
        counted=owned.counted,
        carried=tuple(n for n in gradients.input_names if n not in targets),
        loss=Piece(gradients.copy_model().graph, gradients.opset, tuple(dict.fromkeys([loss, *found, *later]))),
        y=loss,
        reported=loss,
        loss_state=later,
        gradients=found,
    )


def _behind(graph: ir.Graph, inputs: Collection[str]) -> set[str]:
    """Return the names of all values that depend on the named inputs, and those inputs."""
    reached = {v for v in graph.inputs if v.name in inputs}
    for node in graph:
        if not reached.isdisjoint(walk.reads(node)):
            reached.update(node.outputs)
    return {v.name or "" for v in reached}


def _frontier(graph: ir.Graph, wanted: Iterable[str], late: Collection[str]) -> list[str]:
    """Return what the wanted values need of those that do not depend on the targets."""
    values = {v.name or "": v for v in [*graph.inputs, *(v for n in graph for v in n.outputs)]}
    constant = {n.outputs[0] for n in graph if n.op_type == "Constant" and n.domain in ("", "ai.onnx")}
    found: dict[str, None] = {name: None for name in wanted if name not in late}
    needed = walk.ancestors([values[name] for name in wanted if name in late])
    for node in graph:
        if node not in needed or not any(v.name in late for v in node.outputs):
            continue
        for value in walk.reads(node):
            if value.name and value.name in values and value.name not in late and value not in constant:
                found[value.name] = None
    return list(found)


def _cut(graph: ir.Graph, names: Collection[str]) -> ir.Graph:
    """Return the graph with the named values as inputs."""
    for value in [v for n in graph for v in n.outputs if v.name in names]:
        given = edit.copy_value(value)
        value.replace_all_uses_with(given, replace_graph_outputs=True)
        value.name = f"{given.name}/cut"
        graph.inputs.append(given)
    return graph


def _specs(infer: PlainGraph, model: TrainingModel) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    given = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    inputs = [_spec(v) if shapes.dims(v) is not None else TensorSpec(v.name or "", "unknown", ()) for v in given]
    return tuple(inputs), tuple(_spec(v) for v in infer.model.graph.outputs)


def _target_specs(entry: TrainingEntry) -> list[TensorSpec]:
    assert entry.algorithm is not None
    return [_spec(v) for v in entry.algorithm.inputs if v.name not in entry.algorithm.initializers]


def _spec(value: ir.Value) -> TensorSpec:
    tensor = isinstance(value.type, ir.TensorType) and value.dtype is not None
    dtype = str(value.dtype.numpy()) if tensor and value.dtype is not None else "unknown"
    if value.dtype == ir.DataType.STRING:
        dtype = "object"
    return TensorSpec(value.name or "", dtype, shapes.dims(value) or ())
