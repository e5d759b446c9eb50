"""Compare the captured model with TensorFlow: inference, loss, state, gradients and update, on two batch sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onward.frontends.comparison import Comparison, Framework, downhill
from onward.frontends.tensorflow.build import Parts
from onward.frontends.tensorflow.nodes import pattern
from onward.frontends.tensorflow.optimizers import Traced
from onward.frontends.tensorflow.pure import Pure
from onward.frontends.tensorflow.source import FIXED, Source, user_errors
from onward.model.training_model import TrainingModel

A263 = "A263"

TENSORFLOW = Framework(
    "TensorFlow",
    A263,
    differs="write the part that differs in another way; nothing was written",
    fails="the function runs in TensorFlow, so this is a fault of tf2onnx, Onward or ONNX Runtime; "
    "with a fixed batch size (dynamic=False) it may work",
)


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
    captured = _Captured(oracle, model, trial)
    with _kept(captured.all_variables()):
        for inputs, targets in batches:  # with other parameters and another state each time
            captured.compare(inputs, targets)


@contextlib.contextmanager
def _kept(variables: Sequence[Any]) -> Iterator[None]:
    before = [(v, v.numpy()) for v in variables]
    try:
        yield
    finally:
        for variable, array in before:
            variable.assign(array)


class _Captured:
    """The captured model beside the user's variables, which go from step to step."""

    def __init__(self, oracle: Oracle, model: TrainingModel, trial: TrainingModel) -> None:
        self.oracle, self.parts = oracle, oracle.parts
        self.targets = trial.targets
        self.optimizer = self.parts.optimizer if isinstance(self.parts.optimizer, Traced) else None
        self.comparison = Comparison(TENSORFLOW, model, trial, updates=self.optimizer is not None)

    def all_variables(self) -> list[Any]:
        """Return every variable that the comparison may change."""
        own = [v for _, v in self.optimizer.state] if self.optimizer is not None else []
        return [*(w.variable for w in self.parts.weights), *own]

    def compare(self, inputs: tuple[Any, Any], targets: Any) -> None:
        """Compare everything for one batch, and go on to the parameters and the state after the step."""
        parts = self.parts
        flat = [np.asarray(t) for t in tf.nest.flatten(inputs)]
        wanted = [] if targets is None else [np.asarray(t) for t in tf.nest.flatten(targets)]
        data = {**dict(zip(parts.inputs, flat, strict=True)), **dict(zip(self.targets, wanted, strict=True))}
        count = next((a.shape[0] for a in flat if a.ndim), 1)
        where = f"{self.oracle.source.name}, a batch of {count}"

        before = [w.variable.numpy() for w in parts.weights]
        outputs = self.oracle.infer(inputs)
        for weight, array in zip(parts.weights, before, strict=True):  # inference may count, too
            weight.variable.assign(array)
        self.comparison.inference(data, outputs, where)

        value, gradients = self.oracle.train(inputs, targets)
        named = dict(zip([w.name for w in parts.weights if w.trained], gradients, strict=True))
        state = {w.name: w.variable.numpy() for w in parts.weights}
        self.comparison.training(data, value, named, state, where)
        self._step(gradients, where)
        self.comparison.state.update({w.name: w.variable.numpy() for w in parts.weights})

    def _step(self, gradients: Sequence[np.ndarray], where: str) -> None:
        """Compare the optimizer's update, fed with TensorFlow's gradients; without one, go a small step downhill."""
        variables = self.oracle.trained
        if self.optimizer is None:
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign(downhill(variable.numpy(), gradient))
            return
        known = {w.name: g for w, g in zip(self.optimizer.trained, gradients, strict=True)}
        self.optimizer.optimizer.apply([tf.constant(g) for g in gradients], list(variables))
        after = {w.name: w.variable.numpy() for w in self.optimizer.trained}
        after.update({path: v.numpy() for path, v in self.optimizer.state})
        compared = self.comparison.update(known, after, where)
        assert compared
        self.comparison.state.update({n: a for n, a in after.items() if n in self.comparison.state})
