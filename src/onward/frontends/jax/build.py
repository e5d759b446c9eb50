"""Build the training model: inference graph, training forward, gradients and update, from traced functions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from onward.author.initialize import build_initialization
from onward.author.make import emit_gradient
from onward.errors import ArgumentError, Diagnostic
from onward.frontends.jax.dropouts import recognise_dropouts
from onward.frontends.jax.evaluation import emit_evaluation
from onward.frontends.jax.functions import A221, check_scalar, name_of, traced, user_errors
from onward.frontends.jax.layout import cancel_transposes
from onward.frontends.jax.normalisations import recognise_batch_normalisations
from onward.frontends.jax.optimizers import Traced, emit_reset, emit_step, state_values
from onward.frontends.jax.softmaxes import recognise_softmaxes
from onward.frontends.jax.trees import A223, Leaf, Tree
from onward.frontends.jaxpr import versions
from onward.frontends.jaxpr.frame import element_type
from onward.frontends.jaxpr.random import Key
from onward.frontends.jaxpr.sizes import shape_of
from onward.frontends.jaxpr.translator import Translator
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import remove_dead_nodes
from onward.graph.schema import TRAINING_DOMAIN
from onward.graph.walk import all_nodes, ancestors, reads
from onward.model.roles import STATISTIC, Role, mark
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.optimizers import Optimizer
from onward.optimizers.base import FunctionLibrary
from onward.optimizers.emit import emit_update, initializer
from onward.passes.base import collector_paused

A208 = "A208"
A224 = "A224"
OPSET = 20
KEY = "the random key of the step"


@dataclasses.dataclass
class Parts:
    """What `from_jax` was given."""

    loss_fn: Callable[..., Any]
    predict: Callable[..., Any]
    params: Tree
    state: Tree
    has_state: bool
    batch: Tree
    takes_key: bool
    optimizer: Optimizer | Traced
    loss_name: str
    entry: str
    evaluate: Callable[..., Any] | None = None
    _traces: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def once(self, what: str, trace: Callable[[], Any]) -> Any:
        """Return what `trace` returns; it is called once, for the model and for the trial that has fixed numbers."""
        if what not in self._traces:
            self._traces[what] = trace()
        return self._traces[what]

    def loss(self, params: Any, state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        """Return the loss and the new state."""
        arguments = (params, state, batch) if self.has_state else (params, batch)
        result = self.loss_fn(*arguments, key) if self.takes_key else self.loss_fn(*arguments)
        if not self.has_state:
            return result, state
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(
                Diagnostic(
                    A223,
                    "with a state, the loss function must return the loss and the new state",
                    place=name_of(self.loss_fn),
                    found=f"a {type(result).__name__}",
                    needed="(loss, new state)",
                )
            )
        return result

    def infer(self, params: Any, state: Any, batch: Any) -> Any:
        """Return the outputs of inference."""
        return self.predict(params, state, batch) if self.has_state else self.predict(params, batch)

    def evaluation(self, params: Any, state: Any, batch: Any) -> Any:
        """Return the loss of an evaluation."""
        assert self.evaluate is not None
        return self.evaluate(params, state, batch) if self.has_state else self.evaluate(params, batch)

    def arguments(self, *more: Any) -> tuple[list[Any], list[Any]]:
        """Return the arguments of `infer`, and with the key as `more` those of `loss`: the example, and its shapes."""
        trees = (self.params, self.state, self.batch)
        return [*(t.values for t in trees), *more], [*(t.structs for t in trees), *more]

    def key_struct(self) -> Any:
        """Return what stands for the random key while JAX traces."""
        return jax.eval_shape(lambda: jax.random.key(0))


class _Graphs:
    """The graphs under construction, and the values of the leaves."""

    def __init__(self, parts: Parts, pattern: bool) -> None:
        self.parts = parts
        self.pattern = pattern
        leaves = [*parts.params.leaves, *parts.state.leaves, *parts.batch.leaves]
        self.names = Names([leaf.name for leaf in leaves] + [parts.loss_name])
        self.weights = {leaf.name: initializer(leaf.name, np.asarray(leaf.value)) for leaf in parts.params.leaves}
        self.state = {
            leaf.name: initializer(leaf.name, np.asarray(leaf.value)) for leaf in parts.state.leaves if not leaf.is_key
        }
        self.batch = {leaf.name: _input(leaf) for leaf in parts.batch.leaves}
        self.functions: dict[str, ir.Function] = {}

    def arguments(self, *, key: bool) -> tuple[list[Value | Key], list[str]]:
        """Return the values of all leaves in the order of the traced arguments, and their names."""
        leaves = [*self.parts.params.leaves, *self.parts.state.leaves, *self.parts.batch.leaves]
        known = {**self.weights, **self.state, **self.batch}
        values: list[Value | Key] = [
            Key(("argument", leaf.name), frozenset({leaf.name})) if leaf.is_key else known[leaf.name] for leaf in leaves
        ]
        names = [leaf.name for leaf in leaves]
        return ([*values, Key(("argument", KEY), frozenset({KEY}))], [*names, KEY]) if key else (values, names)


def _input(leaf: Leaf) -> Value:
    return ir.Value(
        name=leaf.name, type=ir.TensorType(element_type(leaf.struct.dtype)), shape=shape_of(leaf.struct.shape)
    )


def build(parts: Parts, *, pattern: bool = False) -> tuple[TrainingModel, bool]:
    """Return the training model, and whether its step draws random numbers.

    With `pattern`, fixed numbers take the place of random ones, so that the step can be compared with JAX.
    """
    with collector_paused():
        return _build(_Graphs(parts, pattern))


def _build(graphs: _Graphs) -> tuple[TrainingModel, bool]:
    graph = _inference(graphs)
    model = TrainingModel(ir.Model(graph, ir_version=10, producer_name="onward"))
    model.ir.opset_imports[""] = OPSET
    draws = _training(graphs, model)
    called = {n.op_type for e in model.entries if e.algorithm is not None for n in all_nodes(e.algorithm)}
    for function in (f for f in graphs.functions.values() if f.name in called):
        model.ir.functions[function.identifier()] = function
        model.ir.opset_imports.setdefault(function.domain, 1)
    model.ir.opset_imports[TRAINING_DOMAIN] = 1
    return model, draws


# -- inference -------------------------------------------------------------------------------------------------------


def _inference(graphs: _Graphs) -> ir.Graph:
    parts = graphs.parts
    what = f"predict `{name_of(parts.predict)}`"
    hint = f"it is called as predict(params, {'state, ' if parts.has_state else ''}batch), with the whole batch"
    with user_errors(what, hint):
        closed, shapes = parts.once("predict", lambda: traced(parts.infer, *parts.arguments()))
    op = Builder(OPSET, graphs.names)
    values, names = graphs.arguments(key=False)
    _, used = versions.remove_dead(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = {name for name, is_used in zip(names, used, strict=True) if is_used}
    inputs = [graphs.batch[leaf.name] for leaf in parts.batch.leaves if leaf.name in read]
    if not inputs:
        raise ArgumentError(
            Diagnostic(
                A221,
                "predict reads nothing of the batch",
                place=what,
                needed="outputs that depend on the batch",
                hint=hint,
            )
        )
    translator = Translator(what)
    results = translator.translate(closed, values, op, names)
    if translator.drawn:
        raise ArgumentError(
            Diagnostic(
                A224,
                "inference draws random numbers",
                place=what,
                hint="switch dropout and noise off in predict: deterministic=True, module.eval()",
            )
        )
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]]
    outputs = []
    for path, value, variable in zip(paths, results, closed.jaxpr.outvars, strict=True):
        text = jax.tree_util.keystr(path, simple=True, separator=".")
        wanted = "output" if not text else f"output.{text}" if text[0].isdigit() else text
        outputs.append(_output(op, value, graphs.names.unique(wanted), variable.aval))
    every = [*graphs.weights.values(), *graphs.state.values()]
    graph = ir.Graph(inputs, outputs, nodes=op.nodes, initializers=every, opset_imports={"": OPSET}, name="jax")
    remove_dead_nodes(graph)
    cancel_transposes(graph, OPSET, graphs.names)
    return graph


def _output(op: Builder, value: Any, name: str, aval: Any) -> Value:
    """Return `value` under a name of its own, computed by a node."""
    if isinstance(value, Key):
        raise ArgumentError(Diagnostic(A221, f"output `{name}` is a random key", place="predict="))
    made: Value = op.Identity(value)
    made.name = name
    made.type, made.shape = ir.TensorType(element_type(aval.dtype)), shape_of(aval.shape)
    return made


# -- training --------------------------------------------------------------------------------------------------------


def _training(graphs: _Graphs, model: TrainingModel) -> bool:
    parts = graphs.parts
    what = f"loss `{name_of(parts.loss_fn)}`"
    op = Builder(OPSET, graphs.names, prefix="train/")
    closed = _traced_loss(parts, what)
    values, names = graphs.arguments(key=True)
    translator = Translator(what, differentiable=True, pattern=graphs.pattern)
    loss, *new_state = translator.translate(closed, values, op, names)
    graphs.functions.update(translator.functions)
    assert isinstance(loss, ir.Value)
    loss = _loss(op, loss, parts.loss_name, closed.jaxpr.outvars[0].aval)
    targets = [v for v in graphs.batch.values() if v not in model.graph.inputs]
    for value in targets:
        mark(value, Role.TARGET)
    changed = _changed(graphs, new_state)
    check_draws(translator, {KEY, *changed}, what)
    parameters = list(graphs.weights.values())
    for value in parameters:
        mark(value, Role.PARAMETER)
    gradients = _gradients(op, model, parameters, targets, loss, what)
    entry = _update(graphs, model, op, gradients, loss, targets, changed)
    assert entry.algorithm is not None
    if not graphs.pattern and translator.drawn:
        recognise_dropouts(entry.algorithm, graphs.names)
    remove_dead_nodes(entry.algorithm)
    cancel_transposes(entry.algorithm, OPSET, graphs.names)
    recognise_batch_normalisations(entry.algorithm, OPSET, graphs.names)
    recognise_softmaxes(entry.algorithm, OPSET, graphs.names)
    if parts.evaluate is not None and not graphs.pattern:
        emit_evaluation(parts, graphs.names, *graphs.arguments(key=False), entry.algorithm)
    model.entries.append(entry)
    return bool(translator.drawn)


def _traced_loss(parts: Parts, what: str) -> Any:
    """Return the jaxpr of the loss function: the loss, then the new state."""
    with user_errors(what):
        closed, shapes = parts.once("loss", lambda: traced(parts.loss, *parts.arguments(parts.key_struct())))
    value, new_state = shapes
    check_scalar(value, what)
    _check_state(parts, new_state, what)
    return closed


def _check_state(parts: Parts, new_state: Any, what: str) -> None:
    if jax.tree.structure(new_state) != parts.state.structure:
        raise ArgumentError(
            Diagnostic(
                A223,
                "the new state has another structure than the state",
                place=what,
                found=str(jax.tree.structure(new_state))[:200],
                needed=str(parts.state.structure)[:200],
            )
        )
    problems = [
        Diagnostic(
            A223,
            f"the new state has another shape or type at `{leaf.name}`",
            place=what,
            found=f"{made.dtype}{list(made.shape)}",
            needed=f"{leaf.struct.dtype}{list(leaf.struct.shape)}",
        )
        for leaf, made in zip(parts.state.leaves, jax.tree.leaves(new_state), strict=True)
        if (made.dtype, made.shape) != (leaf.struct.dtype, leaf.struct.shape)
    ]
    if problems:
        raise ArgumentError(problems)


def _loss(op: Builder, value: Value, name: str, aval: Any) -> Value:
    made = _output(op, value, name, aval)
    mark(made, Role.LOSS)
    return made


def _changed(graphs: _Graphs, new_state: Sequence[Value | Key]) -> dict[str, Value | Key]:
    """Return the new value of each leaf of the state that the loss function changes."""
    found: dict[str, Value | Key] = {}
    for leaf, new in zip(graphs.parts.state.leaves, new_state, strict=True):
        if isinstance(new, Key):
            if new.origin != ("argument", leaf.name):
                found[leaf.name] = new
        elif new is not graphs.state[leaf.name]:
            found[leaf.name] = new
    return found


def check_draws(translator: Translator, moving: set[str], what: str) -> None:
    """Raise if a draw comes from a key that is the same in every step; `moving` are the arguments that change."""
    for key in translator.drawn:
        names = {root for root in key.roots if isinstance(root, str)}
        values = [root for root in key.roots if isinstance(root, ir.Value)]
        behind = {v.name for node in ancestors(values) for v in reads(node)} | {v.name for v in values}
        if not moving & (names | behind):
            raise ArgumentError(
                Diagnostic(
                    A224,
                    "a key that never changes draws the same random numbers in every step",
                    place=what,
                    found=f"a key from {', '.join(f'`{n}`' for n in sorted(names | {n for n in behind if n}))}",
                    hint="take the key as the last argument of the loss function, or return the new key in the state",
                )
            )


def _gradients(
    op: Builder,
    model: TrainingModel,
    parameters: Sequence[Value],
    targets: Sequence[Value],
    loss: Value,
    what: str,
) -> dict[Value, Value]:
    """Emit the Gradient node; the gradient of a parameter that the loss does not read is zero."""
    read = {v for node in ancestors([loss]) for v in reads(node)}
    reached = [p for p in parameters if p in read]
    if not reached:
        raise ArgumentError(Diagnostic(A208, "the loss does not depend on the parameters", place=what))
    found = dict(emit_gradient(op, model, reached, targets, loss))
    for parameter in parameters:
        if parameter not in found:
            assert parameter.shape is not None
            assert parameter.dtype is not None
            shape = np.array([int(d) for d in parameter.shape], np.int64)  # type: ignore[arg-type]
            zero = op.ConstantOfShape(shape, value=np.zeros(1, parameter.dtype.numpy()))
            zero.type, zero.shape = parameter.type, parameter.shape
            found[parameter] = zero
    return {p: found[p] for p in parameters}


def _update(
    graphs: _Graphs,
    model: TrainingModel,
    op: Builder,
    gradients: dict[Value, Value],
    loss: Value,
    targets: Sequence[Value],
    changed: dict[str, Value | Key],
) -> TrainingEntry:
    """Emit the optimizer's update and return the training entry."""
    parts, optimizer = graphs.parts, graphs.parts.optimizer
    bindings: dict[str, Value] = {}
    for name, new in changed.items():
        if isinstance(new, ir.Value):
            old = graphs.state[name]
            mark(old, Role.STATE, slot=STATISTIC)
            bindings[name] = _bound(op, old, new)
    settings: list[Value] = []
    if isinstance(optimizer, Optimizer):
        library = FunctionLibrary(OPSET, set())
        update = emit_update(optimizer, op, gradients, library)
        for function in update.functions:
            model.ir.functions[function.identifier()] = function
            model.ir.opset_imports.setdefault(function.domain, 1)
        bindings.update(update.bindings)
        settings, stored, described = update.settings, update.state, json.dumps(optimizer.describe(), sort_keys=True)
    else:
        values = state_values(optimizer.state, parts.params, graphs.names)
        value_of_loss = jax.ShapeDtypeStruct((), loss.dtype.numpy())  # type: ignore[union-attr]
        closed, _ = parts.once("update", lambda: optimizer.trace(value_of_loss))
        after = Builder(OPSET, graphs.names, prefix="update/")
        params = [graphs.weights[leaf.name] for leaf in parts.params.leaves]
        updated, moving, tracer = emit_step(optimizer, after, closed, list(gradients.values()), values, params, loss)
        check_draws(tracer, moving, "the optimizer's update")
        op.nodes.extend(after.nodes)
        known = {**values, **graphs.weights}
        bindings.update({known[n].name or "": _bound(op, known[n], v) for n, v in updated.items()})
        settings = [values[n] for n in values if n in optimizer.rates and n not in updated]
        for rate in settings:
            mark(rate, Role.LEARNING_RATE)
        stored = [v for v in values.values() if v not in settings]
        described = json.dumps({"name": optimizer.name})
    algorithm = ir.Graph(
        [*targets, *settings],
        [loss, *bindings.values()],
        nodes=op.nodes,
        initializers=[*settings, *stored],
        name=parts.entry,
    )
    algorithm.metadata_props["onward.loss"] = f"jax: {name_of(parts.loss_fn)}"
    algorithm.metadata_props["onward.optimizer"] = described
    entry = TrainingEntry(algorithm, update_binding={k: v.name or "" for k, v in bindings.items()})
    if isinstance(optimizer, Optimizer):
        build_initialization(entry, list(graphs.weights.values()), [], update, "keep", OPSET, 0)
    else:
        emit_reset(entry, optimizer, values, OPSET)
    return entry


def _bound(op: Builder, old: Value, new: Value) -> Value:
    """Return the new value of a state under its own name."""
    made: Value = op.Identity(new)
    made.name = op.names.unique(f"new/{old.name}")
    made.type, made.shape = old.type, None if old.shape is None else old.shape.copy()
    return made
