"""`compile_model`: compile a training model to a `Program` of plain ONNX graphs (see docs/how_it_compiles.md).

Each graph is the result of a recipe (`recipes.py`): a source, passes, outputs. Nothing else in Onward lowers a graph.
No pass folds or merges initializers, and every pass keeps the names of the values that it replaces.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import onnx

from onward.arguments import check_name
from onward.author.loss_scale import LossScale, read_loss_scale, scale_losses
from onward.autodiff.forms import Forms
from onward.autodiff.profile import DEFAULT, PORTABLE, PROFILES
from onward.check import check
from onward.compiler.program import Entry, PlainGraph, Program, TensorSpec
from onward.compiler.recipes import (
    ANYWHERE,
    CORE,
    EVALUATE,
    FINISH,
    GRADIENTS,
    INFER,
    INITIALIZE,
    RATE,
    RECOMPUTED,
    STEP,
    UPDATE,
    Output,
    Recipe,
)
from onward.compiler.sources import state_names
from onward.compiler.tuning import Tuner
from onward.errors import A101, ArgumentError, Diagnostic, OnwardError
from onward.graph import shapes, walk
from onward.graph.builder import Value
from onward.graph.schema import WORKING_OPSET
from onward.model.origin import ORIGIN
from onward.model.readings import readings
from onward.model.roles import LOSS_SCALE, RANDOM_KEY, RANDOM_STEP, EntryRoles, averages, entry_roles, random_step
from onward.model.serde import Source
from onward.model.task import TASK, task_of
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.passes.base import Pass, Trace, Unit, collector_paused, run_passes
from onward.passes.cleanup import RestateShapesInBranches
from onward.passes.opset import LabelOpset
from onward.passes.recompute.lowering import RecomputeForward
from onward.passes.recompute.settings import Asked, Estimate, Recompute, Store, Stored, read_recompute, read_store
from onward.passes.recompute.storing import StoreResiduals
from onward.storage.sparing import without_zeros
from onward.upgrade import normalise
from onward.upgrade.graph_call import other_names


def compile_model(
    model: Source,
    *,
    target_opset: int | None = None,
    target_ir: int | None = None,
    seed: int = 0,
    split: bool = False,
    core: bool = False,
    profile: str = DEFAULT,
    recompute: Asked | None = None,
    store: str | None = None,
    sizes: Mapping[str, int] | None = None,
    tune: bool | int | Tuner = False,
    choices: Mapping[str, str] | None = None,
    loss_scale: float | str | LossScale | None = None,
    trace: list[Trace] | None = None,
) -> Program:
    """Return `model` as a `Program`: step, initialize, infer and evaluate as plain ONNX graphs.

    Args:
        model: a path, bytes, a `ModelProto` or a `TrainingModel`.
        target_opset: the opset of all graphs; by default the lowest that each needs, so that as many runtimes as
            possible load them. `target_ir` is the same for the IR version.
        seed: the initial random key.
        split: also compile each step as two graphs: `gradients` (batch to gradients, and new running statistics) and
            `update` (gradients to new state), to accumulate over batches or devices.
        core: use only the core operators (docs/core_operators.md), so that a backend needs no others. The graphs are
            larger and slower.
        profile: `"default"`, the fast form on ONNX Runtime's CPU kernels, or `"portable"`, which avoids what other
            runtimes get wrong (docs/portable.md).
        recompute: compute values of the forward pass again for the backward pass instead of keeping them: `"auto"`
            those that cost little time, patterns (`["layer1.*"]`) those of the nodes, values, weights or modules that
            they name, an amount of memory (`"2GB"`) the fewest that bring the estimated memory of a step below it
            (docs/training.md). Except with patterns, long attention runs in blocks. The gradients are the same.
        store: keep what waits for the backward pass in 16 bits, `"float16"` or `"bfloat16"`, and compute in float32
            as before (docs/training.md). The loss is the same; the gradients are approximate.
        sizes: the free sizes of a batch by name, such as `{"N": 32}`, for which `recompute` and `store` estimate
            memory. A budget needs all of them; otherwise each is 32 if it is not given.
        tune: where a gradient has several forms, time them on this machine's ONNX Runtime and take the fastest
            (docs/tuning.md). A number is the samples in a batch, for a model that takes any number; True means 32.
        choices: the forms that another program took (its `choices`), so that this one takes the same.
        loss_scale: multiply the losses before they are differentiated, for float16: a number, "dynamic" or an
            `onward.LossScale`, as in `onward.make_trainable` (docs/training.md).
        trace: a list that receives one record per pass, with its duration.

    Raises:
        ArgumentError: `recompute` names nothing that is there, or a budget that cannot be reached; `store` is no type
            of 16 bits.
        NotDifferentiable: lists every node that blocks a gradient.
        ModelError: plain operators, those of the target opset, of the profile, or core operators cannot express the
            model.
        CheckFailed: the model cannot be compiled because it is not valid ONNX.
    """
    _check_target(target_opset, target_ir)
    check_name("profile", profile, PROFILES)
    again, stored = read_recompute(recompute, sizes), read_store(store, sizes)
    tuner = Tuner.of(tune)
    if tuner is not None:
        _check_tunable(core, profile)
    training, scale = normalise(model, trace=trace), read_loss_scale(loss_scale)
    if scale is not None:
        training = scale_losses(training, scale)
    forms, before = Forms(choices), len(trace or ())

    def build() -> Program:
        return Compiler(
            training,
            target_opset=target_opset,
            target_ir=target_ir,
            core=core,
            profile=profile,
            recompute=again,
            store=stored,
            forms=forms,
            trace=trace,
        ).program(seed, split)

    try:
        with collector_paused():
            program = build()
        while tuner is not None and (asked := forms.unanswered()):  # another form may ask further questions
            forms = Forms({**forms.chosen, **tuner.answer(asked)})
            if trace is not None:
                del trace[before:]  # of the program with the usual forms
            with collector_paused():
                program = build()
        return program
    except OnwardError:
        raise
    except Exception:  # an invalid model may break a pass anywhere
        check(training).raise_if_errors()  # explains an invalid model; otherwise the error is a bug of ours
        raise


class Compiler:
    """Applies recipes to one normalised model; a common source of several recipes is lowered once."""

    def __init__(
        self,
        model: TrainingModel,
        *,
        target_opset: int | None = None,
        target_ir: int | None = None,
        core: bool = False,
        profile: str = DEFAULT,
        recompute: Recompute | None = None,
        store: Store | None = None,
        forms: Forms | None = None,
        trace: list[Trace] | None = None,
    ) -> None:
        self.model = model
        self._core, self._profile, self._recompute, self._store = core, profile, recompute, store
        self._estimates: dict[str, Estimate] = {}
        self._stored: dict[str, Stored] = {}
        self._forms = Forms() if forms is None else forms
        self._label = LabelOpset(target_opset, target_ir)
        self._trace = trace
        self._lowered: dict[tuple[str, int], Unit] = {}
        self._roles: dict[int, EntryRoles] = {}
        self._keeps = True  # what several recipes start from, for the next one

    def build(self, recipe: Recipe, entry: TrainingEntry | None = None, name: str = "") -> PlainGraph:
        """Return the plain graph that `recipe` builds from the model, for one training entry if it needs one."""
        unit = self._lower(recipe, entry)
        unit.name = name or recipe.name
        chosen = recipe.outputs(unit)
        set_outputs(unit, chosen.outputs)
        portable = ANYWHERE if self._profile == PORTABLE else ()
        memory = self._memory_passes() if recipe.name in RECOMPUTED else []
        finish = (*FINISH, *(CORE if self._core else ()), *portable, *memory, RestateShapesInBranches(), self._label)
        run_passes(finish, unit)
        outputs = name_outputs(unit, chosen.outputs)
        unit.model.producer_name = "onward"
        unit.graph.name = unit.name.replace(" ", "_")
        return PlainGraph(
            unit.name,
            unit.model,
            outputs=tuple(o.name for o in outputs if o.replaces is None),
            replaces={o.name: o.replaces for o in outputs if o.replaces is not None},
            stands_for={o.name: o.stands_for for o in outputs if o.stands_for},
            gradient_of={o.name: pair for o in outputs if (pair := unit.gradients.get(o.name)) is not None},
            totals=chosen.totals,
        )

    def _memory_passes(self) -> list[Pass]:
        passes: list[Pass] = []
        if self._recompute is not None:
            passes.append(RecomputeForward(self._recompute, self._estimates.__setitem__))
        if self._store is not None:
            passes.append(StoreResiduals(self._store, self._stored.__setitem__))
        return passes

    def roles(self, entry: TrainingEntry) -> EntryRoles:
        """Return what the values of an entry of the model are."""
        if id(entry) not in self._roles:  # the model keeps its entries alive
            self._roles[id(entry)] = entry_roles(self.model, entry)
        return self._roles[id(entry)]

    def _lower(self, recipe: Recipe, entry: TrainingEntry | None) -> Unit:
        """Return the source of a recipe after its passes, without outputs."""
        if isinstance(recipe.source, Recipe):
            key = (recipe.source.name, id(entry))
            if key not in self._lowered:
                self._lowered[key] = self._lower(recipe.source, entry)
            unit = self._lowered[key].copy(recipe.name) if self._keeps else self._lowered.pop(key)
        else:
            unit = recipe.source(self.model, entry)
            unit.name, unit.trace, unit.profile = recipe.name, self._trace, self._profile
            unit.forms = self._forms
            if self._recompute is not None:
                unit.saves_memory, unit.usual = not self._recompute.patterns, dict(self._recompute.sizes)
            unit.roles = None if entry is None else self.roles(entry)
            unit.readings = () if entry is None else readings(self.model, entry, self.roles(entry))
        unit.trains = recipe.trains
        run_passes(recipe.passes, unit)
        return unit

    def program(self, seed: int, split: bool) -> Program:
        """Return the whole program."""
        model, self._keeps = self.model, split
        entries: dict[str, Entry] = {}
        for name, entry in named_entries(model).items():
            entries[name] = self._entry(name, entry, split, first=not entries)
            self._lowered.clear()
        infer = self.build(INFER)
        infer.model.metadata_props.update(model.ir.metadata_props)  # names of classes, how data is prepared
        infer.model.metadata_props.pop(ORIGIN, None)
        task = task_of(model)
        if task is not None:
            infer.model.metadata_props[TASK] = task.text()
        initializes = any(e.initialization is not None and e.initialization_binding for e in model.entries)
        return Program(
            entries=entries,
            infer_graph=infer,
            initialize_graph=self.build(INITIALIZE) if initializes else None,
            inputs=tuple(
                dataclasses.replace(_spec(v), takes_nan=walk.takes_nan(v), also=other_names(v))
                for v in model.graph.inputs
                if v.name not in model.graph.initializers
            ),
            targets=tuple(_target_specs(model)),
            settings=settings_of(model),
            state=state_of(model, seed, draws=any(RANDOM_STEP in e.step.replaces.values() for e in entries.values())),
            parameters=tuple(model.parameters),
            averages=averages(model),
            metadata={"name": model.graph.name or "", "producer": "onward"},
            core=self._core,
            profile=self._profile,
            recompute=self._recompute,
            estimates=dict(self._estimates),
            store=self._store,
            stored=dict(self._stored),
            choices=self._forms.answered(),
        )

    def _entry(self, name: str, entry: TrainingEntry, split: bool, first: bool) -> Entry:
        step = self.build(STEP, entry, f"{name} step")
        return Entry(
            name,
            step,
            evaluate=self.build(EVALUATE, entry, "evaluate" if first else f"evaluate {name}"),
            learning_rates=self.roles(entry).learning_rates,
            rate=self.build(RATE, entry, f"{name} rate") if self.roles(entry).scheduled_rate else None,
            readings=readings(self.model, entry, self.roles(entry)),
            gradients=self.build(GRADIENTS, entry, f"{name} gradients") if split else None,
            update=self.build(UPDATE, entry, f"{name} update") if split else None,
            epochs=entry.epochs,
            loss_scale=self.roles(entry).slots.get((LOSS_SCALE, ""), ""),
        )


def named_entries(model: TrainingModel) -> dict[str, TrainingEntry]:
    """Return the training entries that update something, each under a name of its own."""
    found: dict[str, TrainingEntry] = {}
    for index, entry in enumerate(model.entries):
        if entry.algorithm is not None and entry.update_binding:
            numbered = (f"{entry.name}_{number}" for number in itertools.count(index))
            found[next(n for n in (entry.name, *itertools.islice(numbered, len(found) + 1)) if n not in found)] = entry
    return found


def set_outputs(unit: Unit, outputs: list[Output]) -> None:
    """Make `outputs` the graph's outputs. An Identity forwards inputs, and values that serve twice."""
    op = unit.builder()
    wanted = {o.name for o in outputs}
    final: list[Value] = []
    for output in outputs:
        value = output.value
        producer = value.producer()
        keeps_its_name = value.name != output.name and value.name in wanted
        if value in final or producer is None or producer.op_type == "Constant" or keeps_its_name:
            copy = op.Identity(value)
            copy.type, copy.shape = value.type, value.shape
            value = copy
        final.append(value)
    unit.graph.extend(op.nodes)
    unit.graph.outputs.extend(final)


def name_outputs(unit: Unit, outputs: list[Output]) -> list[Output]:
    """Give the graph's outputs their names, which an inner value of that name loses; return what they are called."""
    values = unit.values()
    for output, value in zip(outputs, unit.graph.outputs, strict=True):
        if value.name != output.name:
            holder = values.get(output.name)
            if holder is not None and holder.name == output.name and holder.producer() is not None:
                holder.name = unit.names.unique(f"{output.name}/inner")
            taken = holder is not None and holder.name == output.name
            value.name = unit.names.unique(output.name) if taken else output.name
    return [dataclasses.replace(o, name=v.name or "") for o, v in zip(outputs, unit.graph.outputs, strict=True)]


def _check_tunable(core: bool, profile: str) -> None:
    if core or profile == PORTABLE:
        raise ArgumentError(
            Diagnostic(
                A101,
                "tune measures ONNX Runtime's CPU kernels, and the program is for other runtimes",
                found="core=True" if core else f"profile={profile!r}",
                needed="tune without core, in the default profile",
            )
        )


def _check_target(opset: int | None, ir_version: int | None) -> None:
    newest = onnx.defs.onnx_opset_version()
    problems = []
    if opset is not None and not WORKING_OPSET <= opset <= newest:
        problems.append(
            Diagnostic(
                A101,
                f"target opset {opset} is too {'low' if opset < WORKING_OPSET else 'high'}",
                needed=f"{WORKING_OPSET} (ONNX Runtime 1.14 and later read it) to {newest}",
            )
        )
    if ir_version is not None and ir_version > onnx.IR_VERSION:
        problems.append(
            Diagnostic(A101, f"target IR version {ir_version} is too high", needed=f"at most {onnx.IR_VERSION}")
        )
    if problems:
        raise ArgumentError(problems)


def state_of(model: TrainingModel, seed: int = 0, *, draws: bool = False) -> dict[str, np.ndarray]:
    """Return the state that training replaces, with its stored values; with `draws`, also the random key and step."""
    known = model.initializers()
    state = {name: _array(known[name]) for name in state_names(model)}
    if draws:
        state[RANDOM_KEY] = np.array(seed, np.int64)
        state[RANDOM_STEP] = np.array(random_step(model), np.int64)
    return state


def settings_of(model: TrainingModel) -> dict[str, np.ndarray]:
    """Return the inputs of training steps that have a default, each with its default."""
    bound = set(state_names(model))
    return {
        v.name or "": _array(e.algorithm.initializers[v.name or ""])
        for e in model.entries
        if e.algorithm is not None
        for v in e.algorithm.inputs
        if v.name in e.algorithm.initializers and v.name not in bound
    }


def _array(value: Value) -> np.ndarray:
    assert value.const_value is not None, f"initializer {value.name} has no value"
    return without_zeros(np.asarray(value.const_value.numpy()))


def _target_specs(model: TrainingModel) -> list[TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for entry in model.entries:
        if entry.algorithm is not None:
            for value in entry.algorithm.inputs:
                if value.name not in entry.algorithm.initializers:
                    found.setdefault(value.name or "", _spec(value))
    return list(found.values())


def _spec(value: Value) -> TensorSpec:
    dtype = "unknown" if value.dtype is None else str(value.dtype.numpy())
    return TensorSpec(value.name or "", dtype, shapes.dims(value) or ())
