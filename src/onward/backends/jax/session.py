"""Train on JAX: the program's plain graphs, interpreted with JAX operators and compiled by `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from onward.arguments import check_name
from onward.backends import state as states
from onward.backends.base import Session
from onward.backends.graph.forward import ForwardPart, why_not
from onward.backends.jax.framework import B304
from onward.backends.jax.interpreter import FAILURES, Interpreter, failure
from onward.backends.jax.tensors import to_numpy, to_tensor, wide
from onward.compiler.program import Entry, PlainGraph, Program
from onward.errors import A101, ArgumentError, BackendError, Diagnostic, OnwardError

GRADIENTS = ("auto", "jax", "graph")

Values = dict[str, Any]
Step = Callable[[Values], tuple[Values, Values]]  # inputs -> outputs for the caller, new state


class JaxSession(Session):
    """A program running on JAX.

    Args:
        program: what to run.
        device: where, as JAX names it ("cpu", "gpu", "tpu"); None for JAX's default.
        gradients: `"jax"` for JAX's own backward pass, `"graph"` for the one that is written out in the program,
            `"auto"` for JAX's wherever an entry differentiates one value with respect to its parameters.
    """

    def __init__(self, program: Program, *, device: str | None = None, gradients: str = "auto") -> None:
        super().__init__(program)
        check_name("gradients=", gradients, GRADIENTS)
        try:
            self.device = jax.devices(device)[0]
        except RuntimeError as error:
            message = str(error).splitlines()[0]
            raise ArgumentError(Diagnostic(A101, f"device `{device}` cannot be used: {message}")) from error
        self._state = {n: self._kept(v) for n, v in program.state.items()}
        self._reasons = {n: why_not(entry) for n, entry in program.entries.items()}
        refused = [n for n, reason in self._reasons.items() if reason]
        if gradients == "jax" and refused:
            raise ArgumentError(
                [
                    Diagnostic(
                        A101,
                        f"JAX cannot find the gradients of entry `{n}`: {self._reasons[n]}",
                        hint='use gradients="graph", or "auto"',
                    )
                    for n in refused
                ]
            )
        self._own = {n: gradients != "graph" and not reason for n, reason in self._reasons.items()}
        self._steps = {n: self._prepared(entry) for n, entry in program.entries.items()}
        self._graphs: dict[PlainGraph, _Compiled] = {}

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        for chosen in states.chosen_entries(self.program, entry):
            names, function = self._steps[chosen.name]
            found, state = self._call(f"step {chosen.name}", function, names, feeds)
            outputs.update({n: to_numpy(v) for n, v in found.items()})
            self._state.update(state)
        return outputs

    def run_graph(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if graph not in self._graphs:
            self._graphs[graph] = _Compiled(_interpreter(graph).run)
        found = self._call(graph.name, self._graphs[graph], graph.input_names, feeds)
        return {n: to_numpy(v) for n, v in found.items()}

    def get_state(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(value) for name, value in self._state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._state.update({n: self._kept(v) for n, v in states.checked(self.program, state).items()})

    def describe(self) -> dict[str, Any]:
        return {
            "backend": "jax",
            "jax": jax.__version__,
            "device": str(self.device),
            "gradients": {n: "jax" if own else "graph" for n, own in self._own.items()},
        }

    def _kept(self, value: np.ndarray) -> Any:
        with wide():
            return jax.device_put(to_tensor(value), self.device)

    def _prepared(self, entry: Entry) -> tuple[list[str], _Compiled]:
        """Return the inputs of a training step, and the step itself."""
        if not self._own[entry.name]:
            graph = entry.step
            run = _interpreter(graph).run

            def written(values: Values) -> tuple[Values, Values]:
                results = run(values)
                return {n: results[n] for n in graph.outputs}, _replaced(graph, results)

            return list(graph.input_names), _Compiled(written)
        assert entry.gradients is not None
        assert entry.update is not None
        names = dict.fromkeys([*entry.gradients.input_names, *entry.update.input_names])
        return [n for n in names if n not in entry.gradients.outputs], _Compiled(_differentiated(entry))

    def _call(self, what: str, function: _Compiled, names: Any, feeds: Mapping[str, Any]) -> Any:
        """Call a function of state, settings and what is fed; an exception of JAX becomes an error with its place."""
        given = {**self.program.settings, **feeds}
        states.require_feeds(names, {**self._state, **given}, self.program)
        with wide():
            values = {n: to_tensor(given[n]) if n in given else self._state[n] for n in names}
            try:
                return function(values)
            except OnwardError:
                raise
            except FAILURES as error:
                raise failure(f"the {what} graph", error) from error


class _Compiled:
    """A function compiled by JAX, or run as it is if sizes in it depend on data."""

    def __init__(self, function: Callable[[Values], Any]) -> None:
        self._function = function
        self._compiled: Any = jax.jit(function)

    def __call__(self, values: Values) -> Any:
        if self._compiled is not None:
            try:
                return self._compiled(values)
            except BackendError as error:
                if error.code != B304:
                    raise
                self._compiled = None
        return self._function(values)


def _interpreter(graph: PlainGraph) -> Interpreter:
    return Interpreter(graph.copy_model().graph, graph.opset)


def _replaced(graph: PlainGraph, results: Values) -> Values:
    return {state: results[output] for output, state in graph.replaces.items()}


def _differentiated(entry: Entry) -> Step:
    """Return a training step with the gradients of JAX: forward, backward and update as one function."""
    gradients, update = entry.gradients, entry.update
    assert gradients is not None
    assert update is not None
    part = ForwardPart(gradients)
    forward = Interpreter(part.graph, part.opset, outputs=part.outputs).run
    following = _interpreter(update).run

    def step(values: Values) -> tuple[Values, Values]:
        def loss(parameters: Values) -> tuple[Any, Values]:
            results = forward({**values, **parameters})
            return results[part.y].sum(), results

        found, results = jax.grad(loss, has_aux=True)({n: values[n] for n in part.parameters})
        results = {**results, **{gradient: found[x] for gradient, x in part.state_of.items()}}
        new = following({**values, **{n: results[n] for n in gradients.outputs if n in update.input_names}})
        seen = [n for n in gradients.outputs if n in entry.step.outputs and n not in update.input_names]
        outputs = {n: results[n] for n in seen}
        return outputs, {**_replaced(gradients, results), **_replaced(update, new)}

    return step
