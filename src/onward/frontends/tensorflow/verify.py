"""Compare the captured model with TensorFlow: inference, loss, state, gradients and update, on two batch sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onward.backends.onnxruntime.session import run_once
from onward.backends.reference.evaluator import Evaluator
from onward.compiler.compile import Compiler
from onward.compiler.program import PlainGraph
from onward.compiler.recipes import INFER, LOSS, TRIAL, UPDATE
from onward.errors import ArgumentError, BackendError, Diagnostic
from onward.frontends.tensorflow.build import Parts
from onward.frontends.tensorflow.nodes import pattern
from onward.frontends.tensorflow.optimizers import Traced
from onward.frontends.tensorflow.pure import Pure
from onward.frontends.tensorflow.source import FIXED, Source, user_errors
from onward.model.roles import entry_roles
from onward.model.training_model import TrainingModel

A263 = "A263"

_RELATIVE = {"float16": 3e-2, "float32": 1e-3, "float64": 1e-8}


class Oracle:
    """What TensorFlow itself computes: outputs, loss, gradients and new variables, with the user's own functions.

    `step` is forward pass and loss in one pure graph, for a step that draws random numbers: both sides then compute
    with the same fixed numbers.
    """

    def __init__(
        self, source: Source, loss: Callable[..., Any], parts: Parts, step: Pure | None, order: list[Any]
    ) -> None:
        self.source, self.loss, self.parts, self.step, self.order = source, loss, parts, step, order
        self.trained = [w.variable for w in parts.weights if w.trained]

    def infer(self, inputs: tuple[Any, Any]) -> list[np.ndarray]:
        """Return the outputs of inference."""
        args, kwargs = inputs
        with user_errors(self.source.name, FIXED):
            return [np.asarray(t) for t in tf.nest.flatten(self.source.infer(*args, **kwargs))]

    def train(self, inputs: tuple[Any, Any], targets: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the loss and the gradients; variables that the functions assign have their new values afterwards."""
        if self.step is not None and self.step.draws:
            return self._with_patterns(inputs, targets)
        args, kwargs = inputs
        with user_errors(self.source.name, FIXED), tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.trained)
            value = self.loss(self.source.train(*args, **kwargs), targets)
        found = tape.gradient(value, self.trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return np.asarray(value), [np.asarray(tf.convert_to_tensor(g)) for g in found]

    def _with_patterns(self, inputs: tuple[Any, Any], targets: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        step = self.step
        assert step is not None
        tensors = [np.asarray(t) for t in tf.nest.flatten((inputs, targets)) if t is not None]
        feeds: dict[str, Any] = dict(zip(step.inputs, tensors, strict=True))
        feeds.update({name: self.order[i].numpy() for i, name in step.variables.items()})
        with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
            tf.import_graph_def(step.graph_def, name="")
            shapes = session.run([d.shape for d in step.draws], feeds)
            feeds.update({d.name: pattern(d, s) for d, s in zip(step.draws, shapes, strict=True)})
            loss = graph.get_tensor_by_name(step.outputs[0])
            places = {id(self.order[i]): graph.get_tensor_by_name(n) for i, n in step.variables.items()}
            read = [v for v in self.trained if id(v) in places]
            slopes = [
                tf.zeros_like(places[id(v)]) if g is None else tf.convert_to_tensor(g)
                for v, g in zip(read, tf.gradients(loss, [places[id(v)] for v in read]), strict=True)
            ]
            value, gradients, changed = session.run([loss, slopes, list(step.changed.values())], feeds)
        for index, new in zip(step.changed, changed, strict=True):
            self.order[index].assign(new)
        known = {id(v): g for v, g in zip(read, gradients, strict=True)}
        zeros = {id(v): np.zeros(v.shape, v.dtype.as_numpy_dtype) for v in self.trained}
        return np.asarray(value), [np.asarray(known.get(id(v), zeros[id(v)])) for v in self.trained]


def verify(
    oracle: Oracle,
    model: TrainingModel,
    trial: TrainingModel,
    batches: Sequence[tuple[tuple[Any, Any], Any]],
) -> None:
    """Raise unless the model gives the numbers of TensorFlow on every batch; the user's variables do not change.

    `trial` is the model with a loss that TensorFlow can compute, and fixed numbers in place of random ones.
    """
    comparison = _Comparison(oracle, model, trial)
    with _kept(comparison.all_variables()):
        for inputs, targets in batches:  # with other parameters and another state each time
            comparison.run(inputs, targets)


@contextlib.contextmanager
def _kept(variables: Sequence[Any]) -> Iterator[None]:
    before = [(v, v.numpy()) for v in variables]
    try:
        yield
    finally:
        for variable, array in before:
            variable.assign(array)


class _Comparison:
    def __init__(self, oracle: Oracle, model: TrainingModel, trial: TrainingModel) -> None:
        self.oracle, self.parts = oracle, oracle.parts
        self.trial = trial
        (self.entry,) = trial.entries
        self.state = {n: v.const_value.numpy() for n, v in trial.initializers().items() if v.const_value is not None}
        for name, value in model.initializers().items():
            if value.const_value is not None:
                self.state.setdefault(name, value.const_value.numpy())
        self.roles = entry_roles(trial, self.entry)
        self.infer = Compiler(model).build(INFER, None)
        compiler = Compiler(trial)
        self.gradients = compiler.build(TRIAL, self.entry)
        self.forward = compiler.build(LOSS, self.entry)
        self.optimizer = self.parts.optimizer if isinstance(self.parts.optimizer, Traced) else None
        self.update = Compiler(model).build(UPDATE, model.entries[0]) if self.optimizer is not None else None
        self.given = entry_roles(model, model.entries[0]).gradients

    def all_variables(self) -> list[Any]:
        """Return every variable that the comparison may change."""
        own = [v for _, v in self.optimizer.state] if self.optimizer is not None else []
        return [*(w.variable for w in self.parts.weights), *own]

    def run(self, inputs: tuple[Any, Any], targets: Any) -> None:
        """Compare everything for one batch, and go on to the parameters and the state after the step."""
        parts = self.parts
        flat = [np.asarray(t) for t in tf.nest.flatten(inputs)]
        wanted = [] if targets is None else [np.asarray(t) for t in tf.nest.flatten(targets)]
        data = {**dict(zip(parts.inputs, flat, strict=True)), **dict(zip(self.trial.targets, wanted, strict=True))}
        count = next((a.shape[0] for a in flat if a.ndim), 1)
        where = f"{self.oracle.source.name}, a batch of {count}"

        before = self._variables()
        outputs = self.oracle.infer(inputs)
        self._assign(before)  # inference may count, too
        found = self._run(self.infer, data)
        compare({n: found[n] for n in self.infer.output_names}, outputs, "inference", where)

        value, gradients = self.oracle.train(inputs, targets)
        results = self._run(self.gradients, data)
        compare({"loss": results[self.roles.loss]}, [value], "the loss", where)
        named = dict(zip([w.name for w in parts.weights if w.trained], gradients, strict=True))
        ours = {p: results[g] for g, p in self.roles.gradients.items()}
        compare(ours, [named[p] for p in ours], "the gradient", where, together=True)
        self._statistics(data, where)
        self._step(gradients, where)
        self.state.update({w.name: w.variable.numpy() for w in parts.weights})

    def _variables(self) -> list[np.ndarray]:
        return [w.variable.numpy() for w in self.parts.weights]

    def _assign(self, arrays: Sequence[np.ndarray]) -> None:
        for weight, array in zip(self.parts.weights, arrays, strict=True):
            weight.variable.assign(array)

    def _statistics(self, data: Mapping[str, np.ndarray], where: str) -> None:
        """Compare what the functions assigned with what the forward pass of the file replaces."""
        replaced = {state: output for output, state in self.forward.replaces.items()}
        names = {w.name: w.variable for w in self.parts.weights if w.name in replaced}
        if names:
            results = self._run(self.forward, data)
            compare(
                {n: results[replaced[n]] for n in names}, [v.numpy() for v in names.values()], "the new state", where
            )

    def _step(self, gradients: Sequence[np.ndarray], where: str) -> None:
        """Compare the optimizer's update, fed with TensorFlow's gradients; without one, go a small step downhill."""
        variables = self.oracle.trained
        if self.optimizer is None or self.update is None:
            for variable, gradient in zip(variables, gradients, strict=True):
                step = 0.01 * gradient / (1.0 + np.abs(gradient).max(initial=0.0))
                variable.assign_sub(step.astype(gradient.dtype))
            return
        known = {f"grad/{w.name}": g for w, g in zip(self.optimizer.trained, gradients, strict=True)}
        mine = {g: known[f"grad/{p}"] for g, p in self.given.items()}
        missing = [n for n in self.update.input_names if n not in mine and n not in self.state]
        assert not missing, missing
        results = self._run(self.update, mine)
        self.optimizer.optimizer.apply([tf.constant(g) for g in gradients], list(variables))
        after = {w.name: w.variable.numpy() for w in self.optimizer.trained}
        after.update({path: v.numpy() for path, v in self.optimizer.state})
        ours = {s: results[o] for o, s in self.update.replaces.items() if s in after}
        compare(ours, [after[n] for n in ours], "the optimizer's update", where)
        self.state.update({n: a for n, a in after.items() if n in self.state})

    def _run(self, graph: PlainGraph, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        feeds = {n: data[n] if n in data else self.state[n] for n in graph.input_names}
        try:
            return run_once(graph, feeds)
        except BackendError as error:
            if "NOT_IMPLEMENTED" in str(error):  # no kernel of this type, such as a Conv in float64
                return Evaluator(graph.proto()).run(feeds)
            raise ArgumentError(
                Diagnostic(
                    A263,
                    f"ONNX Runtime cannot run the captured graph: {error.diagnostics[0].message}",
                    place=f"the {graph.name} graph",
                    found=error.diagnostics[0].found,
                    hint="the function runs in TensorFlow, so this is a fault of tf2onnx, Onward or ONNX Runtime; "
                    "with a fixed batch size (dynamic=False) it may work",
                )
            ) from error


def compare(
    ours: Mapping[str, np.ndarray], theirs: Sequence[np.ndarray], what: str, where: str, *, together: bool = False
) -> None:
    """Raise with every name whose numbers differ; `together` measures errors against the largest of all arrays."""
    arrays = [np.asarray(t) for t in theirs]
    scale = max((_size(a) for a in arrays if a.dtype.kind == "f"), default=0.0)
    wrong = []
    for (name, mine), wanted in zip(ours.items(), arrays, strict=True):
        if mine.shape != wanted.shape:
            wrong.append(f"`{name}` has shape {list(mine.shape)} instead of {list(wanted.shape)}")
            continue
        if wanted.dtype.kind != "f":
            if not np.array_equal(mine, wanted):
                wrong.append(f"`{name}`")
            continue
        floor = 1e-12 if wanted.dtype == np.float64 else 1e-6
        own = max(_size(wanted), scale * 1e-2 if together else 0.0, floor)
        with np.errstate(invalid="ignore"):
            error = np.abs(mine.astype(np.float64) - wanted.astype(np.float64))
        same = (mine == wanted) | (np.isnan(mine) & np.isnan(wanted))
        if not np.all(same | (error <= _RELATIVE.get(wanted.dtype.name, 1e-2) * own)):
            wrong.append(f"`{name}` by {float(np.nanmax(np.where(same, 0.0, error))) / own:.1e}")
    if wrong:
        raise ArgumentError(
            Diagnostic(
                A263,
                f"{what} of the captured graph differs from TensorFlow",
                place=where,
                found=", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else ""),
                needed="the numbers of TensorFlow",
                hint="write the part that differs in another way; nothing was written",
            )
        )


def _size(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0.0))
