"""`LossFunction`: an ONNX training model as a pure function of its weights, its state, a batch and a random key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from onward.arguments import check_name
from onward.author.loss_scale import check_unscaled
from onward.backends.graph.loss import forward_graph, has_own_rules, rounds, written_loss
from onward.backends.jax.interpreter import FAILURES, Interpreter, failure
from onward.backends.jax.tensors import Array, jax_type, to_tensor, wide
from onward.compiler.compile import named_entries
from onward.compiler.program import PlainGraph
from onward.compiler.recipes import INFER, LOSS
from onward.errors import A101, ArgumentError, Diagnostic, OnwardError
from onward.model.roles import RANDOM_KEY, RANDOM_STEP, entry_roles, random_step
from onward.model.training_model import TrainingEntry, TrainingModel
from onward.upgrade import normalise

GRADIENTS = ("jax", "graph")
Values = dict[str, Any]


def convert(
    model: Any, entry: str | None = None, *, gradients: str = "jax"
) -> tuple[LossFunction, dict[str, Array], dict[str, Array]]:
    """Return the function, the parameters and the state of `model`; see `onward.backends.jax.to_jax`."""
    check_name("gradients=", gradients, GRADIENTS)
    training = normalise(model)
    check_unscaled(training, "to_jax")
    entries = named_entries(training)
    if not entries:
        raise ArgumentError(
            Diagnostic(A101, "the model has no training information", hint="use onward.make_trainable(...) first")
        )
    if entry is None and len(entries) > 1:
        raise ArgumentError(
            Diagnostic(A101, "the model has several losses", found=", ".join(entries), hint="choose one with entry=")
        )
    chosen = next(iter(entries)) if entry is None else entry
    check_name("entry=", chosen, entries)
    function = LossFunction(training, entries[chosen], written=gradients == "graph")
    return function, *function.weights(training)


class LossFunction:
    """A model's loss: `function(params, state, batch, key)` returns (loss, new state).

    It is pure: it works under `jax.jit`, `jax.grad`, `jax.vmap` and `jax.shard_map`, and depends on no setting of JAX.

    Args:
        params: the trained weights by name, as `to_jax` returned them.
        state: frozen weights, running statistics and counters by name.
        batch: inputs and targets, by name or in order.
        key: for dropout: a number, or a key of `jax.random`. None uses the key in `state`, which counts the steps.
    """

    def __init__(self, model: TrainingModel, entry: TrainingEntry, *, written: bool = False) -> None:
        self.input_names = list(model.inputs)
        self.target_names = list(model.targets)
        self._entry = entry
        roles = entry_roles(model, entry)
        if not roles.loss:
            raise ArgumentError(Diagnostic(A101, "the model has no loss", hint="use onward.make_trainable first"))
        self._types: dict[str, np.dtype] = {}
        self._infer, held = self._prepared(*forward_graph(model, INFER, None))
        self._infer_held = held
        self._written = written or has_own_rules(model, entry) or rounds(model, entry)
        if self._written:
            found = written_loss(model, entry, roles)
            self._loss, self._held = self._prepared(found.step, {})
            self._loss_name, self._replaces = roles.loss, dict(found.step.replaces)
            self._gradients, self._counters = dict(found.gradients), dict(found.counters)
            wanted = [v for v in found.update.model.graph.outputs if v.name in found.counters]
            self._count = Interpreter(found.update.model.graph, found.update.opset, outputs=wanted)
            self._take_types(found.update, only=found.counters.values())
        else:
            graph, held = forward_graph(model, LOSS, entry)
            self._loss, self._held = self._prepared(graph, held)
            self._loss_name, self._replaces = graph.outputs[0], dict(graph.replaces)
        self._parameters = [n for n in model.parameters if n in self._types]

    def _prepared(self, graph: PlainGraph, held: dict[str, str]) -> tuple[Interpreter, dict[str, str]]:
        self._take_types(graph)
        return Interpreter(graph.model.graph, graph.opset), held

    def _take_types(self, graph: PlainGraph, only: Collection[str] | None = None) -> None:
        for value in graph.model.graph.inputs:
            if isinstance(value.type, ir.TensorType) and (only is None or value.name in only):
                self._types[value.name or ""] = jax_type(value.type.dtype)

    def weights(self, model: TrainingModel) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the parameters and the state that the file holds."""
        assert self._entry.algorithm is not None
        held = {**self._entry.algorithm.initializers, **model.graph.initializers}
        arrays = {
            n: to_tensor(v.const_value.numpy())
            for n, v in held.items()
            if v.const_value is not None and n in self._types and n not in self._held
        }
        with wide():
            for name, number in ((RANDOM_KEY, 0), (RANDOM_STEP, random_step(model))):
                if name in self._types:
                    arrays[name] = jnp.asarray(number, jnp.int64)
        params = {n: arrays[n] for n in self._parameters}
        return params, {n: v for n, v in arrays.items() if n not in params}

    def __call__(
        self, params: Mapping[str, Any], state: Mapping[str, Any], batch: Any, key: Any = None
    ) -> tuple[Array, dict[str, Array]]:
        with wide():
            feeds = self._feeds(batch, [*self.input_names, *self.target_names])
            weights = self._weights(params, state)
            if key is not None and RANDOM_KEY in weights:
                weights[RANDOM_KEY] = _number(key)
            try:
                loss, new = self._run_written(weights, feeds) if self._written else self._run(weights, feeds)
            except OnwardError:
                raise
            except FAILURES as error:
                raise failure("the loss", error) from error
            kept = {n: jnp.asarray(v).astype(state[n].dtype) for n, v in new.items()}
        return loss, {**state, **kept}

    def predict(self, params: Mapping[str, Any], state: Mapping[str, Any], batch: Any) -> dict[str, Array]:
        """Return the outputs of the inference graph by name; `batch` holds the inputs, by name or in order."""
        with wide():
            feeds = self._feeds(batch, self.input_names)
            weights = self._weights(params, state)
            return self._infer.run({**weights, **_held(self._infer_held, weights), **feeds})

    def _run(self, weights: Values, feeds: Values) -> tuple[Any, Values]:
        results = self._loss.run({**weights, **_held(self._held, weights), **feeds})
        return results[self._loss_name], {state: results[output] for output, state in self._replaces.items()}

    def _run_written(self, weights: Values, feeds: Values) -> tuple[Any, Values]:
        """Return the loss and the new state; the gradient of the loss is the one that the graph itself computes."""

        @jax.custom_vjp  # type: ignore[untyped-decorator]  # jax is not typed here
        def loss(params: Values, rest: Values) -> tuple[Any, Values]:
            return forward(params, rest)[0]

        def forward(params: Values, rest: Values) -> tuple[tuple[Any, Values], Values]:
            results = self._loss.run({**rest, **params})
            new = {state: results[output] for output, state in self._replaces.items()}
            if self._counters:
                counted = self._count.run({**rest, **params})
                new.update({state: counted[output] for output, state in self._counters.items()})
            found = {p: results[gradient].astype(params[p].dtype) for gradient, p in self._gradients.items()}
            return (results[self._loss_name], new), {p: found.get(p, jnp.zeros_like(v)) for p, v in params.items()}

        def with_residuals(params: Values, rest: Values) -> tuple[tuple[Any, Values], Values]:
            if any(leaf.perturbed for leaf in jax.tree.leaves(rest, is_leaf=_is_primal)):
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        "the explicit backward pass has gradients with respect to parameters only",
                        hint="differentiate params, or use JAX's own gradient: to_jax(model)",
                    )
                )
            values = jax.tree.map(lambda leaf: leaf.value, (params, rest), is_leaf=_is_primal)
            return forward(*values)

        def backward(residuals: Values, upstream: tuple[Any, Values]) -> tuple[Values, None]:
            slope = upstream[0]
            zero = isinstance(slope, jax.custom_derivatives.SymbolicZero)
            return {p: jnp.zeros_like(g) if zero else g * slope for p, g in residuals.items()}, None

        loss.defvjp(with_residuals, backward, symbolic_zeros=True)
        found: tuple[Any, Values] = loss(
            {n: weights[n] for n in self._parameters},
            {**{n: v for n, v in weights.items() if n not in self._parameters}, **feeds},
        )
        return found

    def _feeds(self, batch: Any, names: Sequence[str]) -> Values:
        """Return inputs and targets by name, in the types of the graph."""
        given = dict(batch) if isinstance(batch, Mapping) else None
        if given is None:
            values = list(batch) if isinstance(batch, (list, tuple)) else [batch]
            given = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
        missing = [n for n in names if n not in given]
        unknown = [n for n in given if n not in [*self.input_names, *self.target_names]]
        if missing or unknown:
            found = ", ".join(given) if isinstance(batch, Mapping) else f"{type(batch).__name__} of another length"
            raise ArgumentError(
                Diagnostic(A101, "the batch does not fit the model", found=found, needed=", ".join(names))
            )
        return {n: self._fed(n, given[n]) for n in names if n in self._types}

    def _fed(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return value
        array, wanted = jnp.asarray(value), self._types[name]
        if jnp.issubdtype(array.dtype, jnp.floating) and not jnp.issubdtype(wanted, jnp.floating):
            raise ArgumentError(
                Diagnostic(A101, f"input `{name}` has the wrong type", found=str(array.dtype), needed=str(wanted))
            )
        return array.astype(wanted)

    def _weights(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> Values:
        """Return parameters and state by name; integers in the types of the graph, which JAX may have narrowed."""
        given = {**state, **params}
        needed = [n for n in self._types if n not in (*self.input_names, *self.target_names, *self._held)]
        problems = []
        for name in needed:
            if name not in given:
                problems.append(Diagnostic(A101, f"no value for `{name}` in params or state"))
            elif jnp.issubdtype(self._types[name], jnp.floating) and given[name].dtype != self._types[name]:
                problems.append(
                    Diagnostic(
                        A101,
                        f"weight `{name}` has the wrong type",
                        found=str(given[name].dtype),
                        needed=str(self._types[name]),
                        hint='for float64: jax.config.update("jax_enable_x64", True)',
                    )
                )
        if problems:
            raise ArgumentError(problems)
        return {n: jnp.asarray(given[n]).astype(self._types[n]) for n in needed}


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)


def _held(held: Mapping[str, str], weights: Values) -> Values:
    """Return the inputs that forward a weight without a gradient."""
    return {n: jax.lax.stop_gradient(weights[parameter]) for n, parameter in held.items()}


def _number(key: Any) -> Array:
    """Return a number for a key of `jax.random`, or the number that was given."""
    value = jnp.asarray(key)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if value.ndim:
        words = value.reshape(-1).astype(jnp.int64)
        return words[0] * 0x7FEB352D + words[-1]
    return value.astype(jnp.int64)
