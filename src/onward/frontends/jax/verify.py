"""Compare the captured model with JAX: inference, loss, state, gradients and update, on two batch sizes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from onward.frontends.comparison import Comparison, Framework, downhill
from onward.frontends.jax.batch import another_batch
from onward.frontends.jax.build import Parts, build
from onward.frontends.jax.functions import name_of, user_errors
from onward.frontends.jax.optimizers import Traced
from onward.frontends.jax.trees import Tree
from onward.frontends.jaxpr.evaluate import with_patterns
from onward.frontends.jaxpr.versions import quick_jit
from onward.model.training_model import TrainingModel
from onward.passes.base import collector_paused

A222 = "A222"
JAX = Framework(
    "JAX",
    A222,
    differs="please report it with the function; nothing was written",
    fails="the function itself runs in JAX, so this is a fault of Onward or of ONNX Runtime; "
    "with a fixed batch size (dynamic=False) it may work",
)


def verify(parts: Parts, model: TrainingModel, draws: bool, size: int, dynamic: bool) -> None:
    """Raise unless the model gives the numbers of JAX on the example and, if the batch size is free, on another one.

    Where the step draws random numbers, both sides compute with the same fixed numbers instead.
    """
    with collector_paused():
        trial = build(parts, pattern=True)[0] if draws else model
        example = parts.batch.values
        oracle = _Oracle(parts, model, trial, draws)
        oracle.compare(example)
        oracle.move_on()  # to other parameters and another state: none of them may be a constant of the graph
        oracle.compare(another_batch(example, size) if dynamic else example)


class _Oracle:
    """The user's functions, jitted, and the parameters, the state and the optimizer's state with which they run."""

    def __init__(self, parts: Parts, model: TrainingModel, trial: TrainingModel, draws: bool) -> None:
        self.parts = parts
        optimizer = parts.optimizer if isinstance(parts.optimizer, Traced) else None
        self.optimizer = optimizer
        evaluates = parts.evaluate is not None
        self.comparison = Comparison(JAX, model, trial, evaluates=evaluates, updates=optimizer is not None)
        self.params, self.kept = parts.params.values, parts.state.values
        self.moments = optimizer.state.values if optimizer is not None else None
        self.following: tuple[Any, Any, Any] = (self.params, self.kept, self.moments)
        self.key = jax.random.key(0)
        self.value_and_grad = jax.value_and_grad(with_patterns(parts.loss) if draws else parts.loss, has_aux=True)
        self.everything = quick_jit(self._everything)  # one compilation for each batch size
        self.step = quick_jit(optimizer.step) if optimizer is not None else None

    def _everything(self, params: Any, state: Any, batch: Any, key: Any) -> tuple[Any, Any, Any]:
        """Return the outputs of inference, the loss of an evaluation, and loss, new state and gradients."""
        parts, evaluated = self.parts, None
        with user_errors(f"predict `{name_of(parts.predict)}`"):
            outputs = jax.tree.leaves(parts.infer(params, state, batch))
        if parts.evaluate is not None:
            with user_errors(f"evaluate `{name_of(parts.evaluate)}`"):
                evaluated = parts.evaluation(params, state, batch)
        with user_errors(f"loss `{name_of(parts.loss_fn)}`"):
            return outputs, evaluated, self.value_and_grad(params, state, batch, key)

    def compare(self, batch: Any) -> None:
        """Compare everything for one batch."""
        parts = self.parts
        leaves = jax.tree.leaves(batch)
        data = {leaf.name: np.asarray(array) for leaf, array in zip(parts.batch.leaves, leaves, strict=True)}
        where = f"a batch of {next(np.shape(a)[0] for a in leaves if np.ndim(a))}"
        with user_errors("a step"):  # what a function raises when it runs, not while it is traced
            found = self.everything(self.params, self.kept, batch, self.key)
            outputs, evaluated, ((value, new_state), gradients) = jax.block_until_ready(found)
        self.comparison.inference(data, outputs, where)
        if evaluated is not None:
            self.comparison.evaluation(data, evaluated, where)
        slopes = _named(parts.params, gradients)
        self.comparison.training(data, value, slopes, _named(parts.state, new_state), where)
        self._step(gradients, slopes, value, new_state, where)

    def _step(self, gradients: Any, slopes: dict[str, Any], value: Any, new_state: Any, where: str) -> None:
        """Compare the optimizer's update, fed with the gradients of JAX."""
        if self.optimizer is None or self.step is None:
            moved = jax.tree.map(  # by numpy, because JAX compiles for each shape
                lambda p, g: jax.numpy.asarray(downhill(np.asarray(p), np.asarray(g))), self.params, gradients
            )
            self.following = (moved, new_state, None)
            return
        new_params, moments = self.step(gradients, self.moments, self.params, value)
        self.following = (new_params, new_state, moments)
        if not self.comparison.draws_in_update:
            after = {**_named(self.parts.params, new_params), **_named(self.optimizer.state, moments)}
            self.comparison.update(slopes, after, where)

    def move_on(self) -> None:
        """Go on with the parameters and the state after the step."""
        self.params, self.kept, self.moments = self.following
        held = {**_named(self.parts.params, self.params), **_named(self.parts.state, self.kept)}
        if self.optimizer is not None:
            held.update(_named(self.optimizer.state, self.moments))
        self.comparison.state.update({name: np.asarray(array) for name, array in held.items()})


def _named(tree: Tree, values: Any) -> dict[str, Any]:
    """Return the arrays of a tree by the names of its leaves, without random keys."""
    leaves = zip(tree.leaves, jax.tree.leaves(values), strict=True)
    return {leaf.name: array for leaf, array in leaves if not leaf.is_key}
