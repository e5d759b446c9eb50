"""Compare the captured model with JAX: inference, loss, state, gradients and update, on two batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from onward.backends.onnxruntime.session import run_once
from onward.backends.reference.evaluator import Evaluator
from onward.compiler.compile import Compiler
from onward.compiler.program import PlainGraph
from onward.compiler.recipes import EVALUATE, INFER, LOSS, TRIAL, UPDATE
from onward.errors import ArgumentError, BackendError, Diagnostic
from onward.frontends.jax.batch import another_batch
from onward.frontends.jax.build import Parts, build
from onward.frontends.jax.functions import name_of, user_errors
from onward.frontends.jax.optimizers import Traced
from onward.frontends.jaxpr.evaluate import with_patterns
from onward.frontends.jaxpr.versions import quick_jit
from onward.model.roles import entry_roles
from onward.model.training_model import TrainingModel

A222 = "A222"

_RELATIVE = {"float16": 3e-2, "float32": 1e-3, "float64": 1e-8}


def verify(parts: Parts, model: TrainingModel, draws: bool, size: int, dynamic: bool) -> None:
    """Raise unless the model gives the numbers of JAX on the example and, if the batch size is free, on another one.

    Where the step draws random numbers, both sides compute with the same fixed numbers instead.
    """
    trial = build(parts, pattern=True)[0] if draws else model
    example = parts.batch.values
    comparison = _Comparison(parts, model, trial, draws)
    comparison.run(example)
    comparison.move_on()  # to other parameters and another state: none of them may be a constant of the graph
    comparison.run(another_batch(example, size) if dynamic else example)


class _Comparison:
    def __init__(self, parts: Parts, model: TrainingModel, trial: TrainingModel, draws: bool) -> None:
        self.parts = parts
        self.trial = trial
        (self.entry,) = trial.entries
        self.state = {n: v.const_value.numpy() for n, v in trial.initializers().items() if v.const_value is not None}
        compiler = Compiler(trial)
        self.infer = Compiler(model).build(INFER, None)
        self.evaluate = Compiler(model).build(EVALUATE, model.entries[0]) if parts.evaluate is not None else None
        self.evaluation = quick_jit(parts.evaluation) if parts.evaluate is not None else None
        self.gradients = compiler.build(TRIAL, self.entry)
        self.forward = compiler.build(LOSS, self.entry)
        self.update = compiler.build(UPDATE, self.entry) if isinstance(parts.optimizer, Traced) else None
        self.random_update = bool(self.update and any(n.startswith("random/") for n in self.update.input_names))
        self.params, self.kept = parts.params.values, parts.state.values
        self.moments = parts.optimizer.state.values if isinstance(parts.optimizer, Traced) else None
        self.following: tuple[Any, Any, Any] = (self.params, self.kept, self.moments)
        self.step = quick_jit(parts.optimizer.step) if isinstance(parts.optimizer, Traced) else None
        self.key = jax.random.key(0)
        loss = parts.loss
        if draws:
            loss = with_patterns(parts.loss)
        self.predict = quick_jit(parts.infer)
        self.value_and_grad = quick_jit(jax.value_and_grad(loss, has_aux=True))

    def run(self, batch: Any) -> None:
        """Compare everything for one batch."""
        parts = self.parts
        leaves = jax.tree.leaves(batch)
        data = {leaf.name: np.asarray(array) for leaf, array in zip(parts.batch.leaves, leaves, strict=True)}
        count = next(np.shape(a)[0] for a in leaves if np.ndim(a))
        where = f"a batch of {count}"
        params, state = self.params, self.kept
        with user_errors(f"predict `{name_of(parts.predict)}`"):
            outputs = jax.tree.leaves(self.predict(params, state, batch))
        found = self._run(self.infer, data)
        _compare({n: found[n] for n in self.infer.output_names}, outputs, "inference", where)
        if self.evaluate is not None and self.evaluation is not None:
            with user_errors(f"evaluate `{name_of(parts.evaluate)}`"):
                wanted_loss = self.evaluation(params, state, batch)
            evaluated = self._run(self.evaluate, data)
            name = entry_roles(self.trial, self.entry).loss
            _compare({name: evaluated[name]}, [wanted_loss], "the loss of an evaluation", where)

        with user_errors(f"loss `{name_of(parts.loss_fn)}`"):
            (value, new_state), gradients = self.value_and_grad(params, state, batch, self.key)
        results = self._run(self.gradients, data)
        roles = entry_roles(self.trial, self.entry)
        _compare({roles.loss: results[roles.loss]}, [value], "the loss", where)
        wanted = {leaf.name: g for leaf, g in zip(parts.params.leaves, jax.tree.leaves(gradients), strict=True)}
        names = list(roles.gradients.values())
        ours = {p: results[g] for g, p in roles.gradients.items()}
        _compare(ours, [wanted[p] for p in names], "the gradient", where, together=True)
        self._statistics(data, new_state, where)
        self.following = (params, new_state, self.moments)
        self._step(gradients, value, where)

    def move_on(self) -> None:
        """Go on with the parameters and the state after the step."""
        self.params, self.kept, self.moments = self.following
        parts = self.parts
        trees = [(parts.params, self.params), (parts.state, self.kept)]
        if isinstance(parts.optimizer, Traced):
            trees.append((parts.optimizer.state, self.moments))
        for tree, values in trees:
            for leaf, array in zip(tree.leaves, jax.tree.leaves(values), strict=True):
                if not leaf.is_key:
                    self.state[leaf.name] = np.asarray(array)

    def _statistics(self, data: Mapping[str, np.ndarray], new_state: Any, where: str) -> None:
        replaced = {state: output for output, state in self.forward.replaces.items()}
        leaves = [
            (leaf.name, array)
            for leaf, array in zip(self.parts.state.leaves, jax.tree.leaves(new_state), strict=True)
            if leaf.name in replaced
        ]
        if leaves:
            results = self._run(self.forward, data)
            _compare({n: results[replaced[n]] for n, _ in leaves}, [a for _, a in leaves], "the new state", where)

    def _step(self, gradients: Any, value: Any, where: str) -> None:
        """Compare the optimizer's update, fed with the gradients of JAX."""
        optimizer, parts = self.parts.optimizer, self.parts
        if self.update is None or not isinstance(optimizer, Traced) or self.step is None:
            self.following = (_downhill(self.params, gradients), *self.following[1:])
            return
        new_params, new_state = self.step(gradients, self.moments, self.params, value)
        self.following = (new_params, self.following[1], new_state)
        if self.random_update:
            return
        given = dict(zip([leaf.name for leaf in parts.params.leaves], jax.tree.leaves(gradients), strict=True))
        roles = entry_roles(self.trial, self.entry)
        feeds = {g: np.asarray(given[p]) for g, p in roles.gradients.items()}
        if any(n not in feeds and n not in self.state for n in self.update.input_names):
            return  # the update reads the batch through the loss: the gradients above were compared
        results = self._run(self.update, feeds)
        wanted = dict(
            zip(
                [leaf.name for leaf in [*parts.params.leaves, *optimizer.state.leaves]],
                [*jax.tree.leaves(new_params), *jax.tree.leaves(new_state)],
                strict=True,
            )
        )
        ours = {state: results[output] for output, state in self.update.replaces.items() if state in wanted}
        _compare(ours, [wanted[n] for n in ours], "the optimizer's update", where)

    def _run(self, graph: PlainGraph, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        feeds = {n: data[n] if n in data else self.state[n] for n in graph.input_names}
        try:
            return run_once(graph, feeds)
        except BackendError as error:
            if "NOT_IMPLEMENTED" in str(error):  # no kernel of this type, such as a Conv in float64
                return Evaluator(graph.proto()).run(feeds)
            raise ArgumentError(
                Diagnostic(
                    A222,
                    f"ONNX Runtime cannot run the captured graph: {error.diagnostics[0].message}",
                    place=f"the {graph.name} graph",
                    found=error.diagnostics[0].found,
                    hint="the function itself runs in JAX, so this is a fault of Onward or of ONNX Runtime",
                )
            ) from error


def _downhill(params: Any, gradients: Any) -> Any:
    """Return parameters nearby, a small step along the gradients; by numpy, because JAX compiles for each shape."""

    def move(p: np.ndarray, g: np.ndarray) -> np.ndarray:
        moved: np.ndarray = p - 0.01 * g / (1.0 + np.abs(g).max(initial=0.0))
        return moved.astype(p.dtype)

    return jax.tree.map(lambda p, g: jax.numpy.asarray(move(np.asarray(p), np.asarray(g))), params, gradients)


def _compare(
    ours: Mapping[str, np.ndarray],
    theirs: Sequence[Any],
    what: str,
    where: str,
    *,
    together: bool = False,
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
        tolerance = _RELATIVE.get(wanted.dtype.name, 1e-2)
        own = max(_size(wanted), scale * 1e-2 if together else 0.0, 1e-6 if wanted.dtype != np.float64 else 1e-12)
        with np.errstate(invalid="ignore"):
            error = np.abs(mine.astype(np.float64) - wanted.astype(np.float64))
        same = (mine == wanted) | (np.isnan(mine) & np.isnan(wanted))
        if not np.all(same | (error <= tolerance * own)):
            worst = float(np.nanmax(np.where(same, 0.0, error))) / own
            wrong.append(f"`{name}` by {worst:.1e}")
    if wrong:
        raise ArgumentError(
            Diagnostic(
                A222,
                f"{what} of the captured graph differs from JAX",
                place=where,
                found=", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else ""),
                needed="the numbers of JAX",
                hint="please report it with the function; nothing was written",
            )
        )


def _size(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0.0))
