"""`compile_model`: a training model becomes a `Program` of plain ONNX graphs.

    combine     inference graph and algorithm as one graph, state as pure inputs
    inline      model-local functions
    sequences   as tensors, where their length is known
    randomness  Dropout and Random operators as arithmetic over key and step
    gradient    `Gradient` nodes
    optimizers  Adagrad, Adam, Momentum
    prune       what no output needs, and what is computed twice
    label       the lowest opset and IR version the graph needs

Each pass keeps names and is safe for training: none of them folds or merges initializers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from onward.autodiff import rules as rules  # importing the package registers every rule
from onward.autodiff.lowering import is_gradient, lower_model
from onward.autodiff.registry import is_own
from onward.check import check
from onward.compiler import unit as combining
from onward.compiler.loss_over_batches import Expression, loss_totals
from onward.compiler.program import Program, StepGraph, TensorSpec
from onward.compiler.unit import M301, Combined, combine, inline_functions, set_outputs, state_names, tensor_array
from onward.errors import A101, ArgumentError, Diagnostic, ModelError, OnwardError
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Names, Value
from onward.graph.schema import WORKING_OPSET
from onward.model import serde
from onward.model.serde import Source
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.passes.opset import ir_version_of, lower_opset, lowest_opset
from onward.passes.optimizers import decompose_optimizers
from onward.passes.randomness import KEY, STEP, drop_inactive_dropout, is_random, lower_random
from onward.passes.running_statistics import protect_statistics
from onward.passes.sequences import lower_sequences

TRAINING_PREFIX = "train/"  # make_trainable names the training-mode copy of a value X `train/X`


def compile_model(
    model: Source,
    *,
    target_opset: int | None = None,
    target_ir: int | None = None,
    seed: int = 0,
    split: bool = False,
) -> Program:
    """Return `model` as a `Program`: step, initialize, infer and evaluate as plain ONNX graphs.

    `target_opset` and `target_ir` default to the lowest that the graphs need, so that as many runtimes as possible
    load them. `seed` is the initial random key. With `split`, each step is also given as two graphs: `gradients` (batch
    to gradients, and what changes without them, such as running statistics) and `updates` (gradients to new state), for
    accumulation over batches or devices.

    Raises:
        NotDifferentiable: listing every node that blocks a gradient.
        ModelError: something has no plain form, or does not fit the target opset.
        CheckFailed: the model is not valid ONNX and cannot be compiled for that reason.
    """
    training = serde.load(model)
    _check_target(target_opset, target_ir)
    try:
        return _compile(training, target_opset, target_ir, seed, split)
    except OnwardError:
        raise
    except Exception:
        check(training).raise_if_errors()  # a broken model is explained; what is left is a mistake of ours
        raise


def _compile(
    training: TrainingModel, target_opset: int | None, target_ir: int | None, seed: int, split: bool
) -> Program:
    if training.opset < WORKING_OPSET:
        from onward.upgrade import to_working_opset

        training = to_working_opset(training)
    random = _Randomness(seed)
    steps: dict[str, _Step] = {}
    gradients: dict[str, _Step] = {}
    updates: dict[str, _Step] = {}
    entries: dict[str, TrainingEntry] = {}
    for index, entry in enumerate(training.entries):
        if entry.algorithm is not None and entry.update_binding:
            name = entry.name if entry.name not in steps else f"{entry.name}_{index}"
            entries[name] = entry
            steps[name] = _step(training, entry, random)
            if split:
                gradients[name] = _step(training, entry, random, part="gradients")
                updates[name] = _step(training, entry, random, part="updates")
    totals: dict[str, Expression] = {}
    evaluations = {name: _evaluate(training, entry, name, totals) for name, entry in entries.items()}
    evaluate = next(iter(evaluations.values()), None)
    infer = _infer(training)
    initialize = _initialize(training)
    finished = [s.combined for s in (*steps.values(), *gradients.values(), *updates.values())]
    finished += [c for c in (*evaluations.values(), infer, initialize) if c is not None]
    for combined in finished:
        _label(combined, target_opset, target_ir)
    state, settings = _state_values(training, random), _settings(training)
    loss = next((s.outputs[0] for s in steps.values()), "")
    return Program(
        steps=_step_graphs(steps, "step"),
        initialize=None if initialize is None else _proto(initialize, "initialize"),
        infer=_proto(infer, "infer"),
        evaluate=None if evaluate is None else _proto(evaluate, "evaluate"),
        inputs=tuple(_spec(v) for v in training.graph.inputs if v.name not in training.graph.initializers),
        targets=tuple(_target_specs(training)),
        settings=settings,
        state=state,
        parameters=tuple(training.parameters),
        loss=loss,
        gradients=_step_graphs(gradients, "gradients"),
        updates=_step_graphs(updates, "update"),
        evaluations={n: _proto(e, f"evaluate {n}") for n, e in evaluations.items() if e is not evaluate},
        totals=totals,
        metadata={"name": training.graph.name or "", "producer": "onward"},
    )


class _Randomness:
    """The random key and step: state of the program if any graph draws random numbers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.used = False


class _Step:
    def __init__(
        self,
        combined: Combined,
        replaces: dict[str, str],
        outputs: tuple[str, ...],
        gradient_of: dict[str, tuple[str, str]],
    ) -> None:
        self.combined = combined
        self.replaces = replaces
        self.outputs = outputs
        self.gradient_of = gradient_of


def _step_graphs(steps: dict[str, _Step], title: str) -> dict[str, StepGraph]:
    return {
        name: StepGraph(name, _proto(s.combined, f"{name} {title}"), s.replaces, s.outputs, s.gradient_of)
        for name, s in steps.items()
    }


def _step(model: TrainingModel, entry: TrainingEntry, random: _Randomness, part: str = "step") -> _Step:
    """Return one entry as a plain graph: the whole step, or with `part` only its gradients or only its update."""
    combined = combine(model, entry)
    inline_functions(combined, keep_own_rules=True)
    lower_sequences(combined.graph, combined.opset, combined.names)
    extra: list[tuple[str, Value]] = []
    if any(is_random(n) for n in _all_nodes(combined.graph)):
        shapes.infer_shapes(combined.model)
        key, step = random_inputs(combined)
        lower_random(combined.graph, key, step, combined.opset, combined.names)
        random.used = True
        op = Builder(combined.opset, combined.names, prefix="random/")
        following = op.Add(step, 1)
        following.shape = ir.Shape([])
        combined.graph.extend(op.nodes)
        extra.append((STEP, following))
    gradient_names = [v.name or "" for n in combined.graph if is_gradient(n) for v in n.outputs if v.name]
    gradient_of = _gradients_by_state(combined) if part == "gradients" else {}
    lower_model(combined.model)
    inline_functions(combined)
    decompose_optimizers(combined.graph, combined.opset, combined.names)
    values = {v.name: v for v in _defined(combined.graph) if v.name}
    gradients = [values[n] for n in gradient_names]
    assert entry.algorithm is not None
    bound = set(entry.update_binding.values())
    visible = [v.name or "" for v in entry.algorithm.outputs if v.name not in bound]
    new_state = [(key, values[value]) for key, value in entry.update_binding.items()] + extra
    if part != "step":
        early = _of_the_batch(new_state, gradients, combined.data)
        new_state = [(k, v) for k, v in new_state if (k in early) == (part == "gradients")]
    if part == "updates":
        _cut_at(combined, gradients)
        visible = []
    else:
        needed = walk.ancestors([v for _, v in new_state] + [values[n] for n in visible])
        # The model's own outputs come along where the step computes them anyway.
        visible += [n for n in model.outputs if n not in visible and values[n].producer() in needed]
        visible += gradient_names if part == "gradients" else []
    outputs = [(n, values[n]) for n in visible] + [(f"next/{key}", value) for key, value in new_state]
    _finish(combined, outputs)
    replaces = {f"next/{key}": key for key, _ in new_state}
    return _Step(combined, replaces, tuple(visible), gradient_of)


def _gradients_by_state(combined: Combined) -> dict[str, tuple[str, str]]:
    """Return gradient -> (y, x) of the Gradient nodes that differentiate by states, where these are."""
    state = {v.name for v in combined.state}
    found: dict[str, tuple[str, str]] = {}
    if any(is_own(n.op_type, n.domain, combined.opset) for n in walk.all_nodes(combined.graph)):
        return found  # what is differentiated by a rule of the user's own is not for others to differentiate
    for node in combined.graph:
        if is_gradient(node):
            xs, y = node.attributes["xs"].as_strings(), node.attributes["y"].as_string()
            zs = node.attributes["zs"].as_strings() if "zs" in node.attributes else ()
            given = zip(node.inputs, [*xs, *zs], strict=False)
            if all(v is not None and v.name == name and v.producer() is None for v, name in given):
                found.update({v.name: (y, x) for v, x in zip(node.outputs, xs, strict=False) if v.name and x in state})
    return found


def _of_the_batch(
    new_state: Sequence[tuple[str, Value]], gradients: Sequence[Value], data: Sequence[Value]
) -> set[str]:
    """Return the states that change with each batch and not with the update: running statistics, the random step."""
    sources, batch = {g.producer() for g in gradients}, set(data)
    early = {STEP}
    for name, value in new_state:
        behind = walk.ancestors([value])
        if not sources & behind and any(v in batch for n in behind for v in walk.reads(n)):
            early.add(name)
    return early


def _cut_at(combined: Combined, gradients: Sequence[Value]) -> None:
    """Make each gradient an input of the graph, and drop the batch inputs: an update needs no batch."""
    graph = combined.graph
    for gradient in gradients:
        name, stand_in = gradient.name, edit.copy_value(gradient)
        gradient.name = combined.names.unique(f"{name}/cut")
        gradient.replace_all_uses_with(stand_in)
        stand_in.name = name
        graph.inputs.append(stand_in)
    combined.settings += combined.data  # inputs that may go when nothing reads them
    combined.data = []


def _evaluate(model: TrainingModel, entry: TrainingEntry, name: str, totals: dict[str, Expression]) -> Combined:
    """The loss and outputs in inference mode: training-mode copies of values give way to the inference graph's.

    How the loss is put together from several batches goes into `totals` under the `name` of the entry.
    """
    assert entry.algorithm is not None
    combined = combine(model, entry)
    inline_functions(combined)
    lower_sequences(combined.graph, combined.opset, combined.names)
    values = {v.name: v for v in _defined(combined.graph) if v.name}
    bound = set(entry.update_binding.values())
    visible = [v.name or "" for v in entry.algorithm.outputs if v.name not in bound and v.name not in model.outputs]
    for given, value in values.items():
        plain = values.get(given.removeprefix(TRAINING_PREFIX))
        if given.startswith(TRAINING_PREFIX) and plain is not None and value.producer() is not None:
            value.replace_all_uses_with(plain)
    drop_inactive_dropout(combined.graph, combined.opset, combined.names)
    values = {v.name: v for v in _defined(combined.graph) if v.name}
    outputs = [(n, values[n]) for n in [*visible, *model.outputs]]
    found = loss_totals(combined, values[visible[0]]) if visible else None
    if found is not None:
        totals[name] = found.expression
        outputs += found.outputs
    _finish(combined, outputs)
    return combined


def _infer(model: TrainingModel) -> Combined:
    combined = combine(model, None)
    inline_functions(combined, keep_own_rules=True)
    lower_sequences(combined.graph, combined.opset, combined.names)
    lower_model(combined.model)
    inline_functions(combined)
    values = {v.name: v for v in _defined(combined.graph) if v.name}
    _finish(combined, [(n, values[n]) for n in model.outputs])
    return combined


def _initialize(model: TrainingModel) -> Combined | None:
    """All entries' initialisations as one graph with the outputs `next/<state>`; inputs are the random key and step."""
    outputs: dict[str, Value] = {}
    nodes: list[ir.Node] = []
    constants: list[Value] = []
    names = Names()
    for entry in model.entries:
        if entry.initialization is None or not entry.initialization_binding:
            continue
        copied = edit.copy_graph(entry.initialization, names=names)
        produced = dict(zip([v.name for v in entry.initialization.outputs], copied.outputs, strict=True))
        missing = [v for v in entry.initialization_binding.values() if v not in produced]
        if missing:
            raise ModelError(
                Diagnostic(
                    M301,
                    f"the initialization has no output {', '.join(f'`{m}`' for m in missing)}",
                    hint="run `onward check` on the file",
                )
            )
        outputs.update({key: produced[value] for key, value in entry.initialization_binding.items()})
        constants += list(copied.initializers.values())
        moved = list(copied)
        copied.outputs.clear()
        copied.remove(moved)
        for constant in list(copied.initializers.values()):
            copied.initializers.pop(constant.name or "")
        nodes += moved
    if not outputs:
        return None
    graph = ir.Graph([], [], nodes=nodes, initializers=constants, name="initialize",
                     opset_imports=dict(model.ir.opset_imports))  # fmt: skip
    functions = [f.clone() for f in model.ir.functions.values()]
    combined = Combined(ir.Model(graph, ir_version=model.ir.ir_version, functions=functions), {}, names, [], [], [])
    wanted = {key: value.name for key, value in outputs.items()}  # lowering replaces values and keeps their names
    inline_functions(combined)
    if any(is_random(n) for n in _all_nodes(graph)):
        shapes.infer_shapes(combined.model)
        key, step = random_inputs(combined)
        lower_random(graph, key, step, combined.opset, names)
    named = {v.name: v for v in _defined(graph)}
    final = [(f"next/{key}", named[name]) for key, name in wanted.items()]
    _finish(combined, final)
    return combined


def random_inputs(combined: Combined) -> tuple[Value, Value]:
    """Add the random key and step to the graph's inputs and return them."""
    made = []
    for name in (KEY, STEP):
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        combined.names.taken.add(name)
        combined.graph.inputs.append(value)
        combined.state.append(value)
        made.append(value)
    return made[0], made[1]


def _finish(combined: Combined, outputs: Sequence[tuple[str, Value]]) -> None:
    """Set the outputs, remove what none of them needs, unused inputs of state and settings included."""
    set_outputs(combined, list(outputs))
    graph = combined.graph
    edit.remove_dead_nodes(graph)
    # Each parameter's update computes the same bias corrections: once is enough. State is input, so none can merge.
    CommonSubexpressionEliminationPass()(combined.model)
    protect_statistics(graph, combined.opset, combined.names)
    for value in [*combined.settings, *combined.state]:
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            graph.initializers.pop(name)
    shapes.infer_shapes(combined.model)


def _label(combined: Combined, target_opset: int | None, target_ir: int | None) -> None:
    model = combined.model
    opset = target_opset if target_opset is not None else lowest_opset(model, WORKING_OPSET)
    lower_opset(model, opset)
    lowest = max(8, ir_version_of(opset))
    if target_ir is not None and target_ir < lowest:
        raise ArgumentError(
            Diagnostic(
                A101, f"target IR version {target_ir} is too low", needed=f"{lowest} or higher for opset {opset}"
            )
        )
    model.ir_version = lowest if target_ir is None else target_ir


def _proto(combined: Combined, title: str) -> onnx.ModelProto:
    model = combined.model
    model.producer_name = "onward"
    model.graph.name = title.replace(" ", "_")
    return serde.to_proto(TrainingModel(model))


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


def _defined(graph: ir.Graph) -> Iterable[Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _all_nodes(graph: ir.Graph) -> Iterable[ir.Node]:
    for node in graph:
        yield node
        for sub in walk.subgraphs(node):
            yield from _all_nodes(sub)


def _state_values(model: TrainingModel, random: _Randomness) -> dict[str, np.ndarray]:
    known = model.initializers()
    state = {name: tensor_array(known[name]) for name in state_names(model)}
    if random.used:
        state[KEY] = np.array(random.seed, np.int64)
        state[STEP] = np.array(0, np.int64)
    return state


def _settings(model: TrainingModel) -> dict[str, np.ndarray]:
    bound = set(state_names(model))
    return {
        v.name or "": combining.tensor_array(e.algorithm.initializers[v.name or ""])
        for e in model.entries
        if e.algorithm is not None
        for v in e.algorithm.inputs
        if v.name in e.algorithm.initializers and v.name not in bound
    }


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
