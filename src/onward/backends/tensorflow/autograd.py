"""One training step as a pure function of tensors: gradients by GradientTape, then the update graph.

Where a training entry needs more than gradients of one value with respect to parameters (several values, second
derivatives, rounding), the step graph runs, in which the backward pass is written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from onward.backends.graph.forward import ForwardPart, why_not
from onward.backends.tensorflow.interpreter import Interpreter
from onward.compiler.program import Entry, PlainGraph
from onward.errors import A101, ArgumentError, Diagnostic

GRADIENTS = ("auto", "tape", "graph")
Values = Mapping[str, Any]
Tensors = dict[str, Any]


class Forward:
    """The forward part of a gradients graph, differentiated by TensorFlow."""

    def __init__(self, step: PlainGraph) -> None:
        part = ForwardPart(step)
        self.y, self.state_of, self.names = part.y, part.state_of, part.parameters
        self.input_names = part.input_names
        self.interpreter = Interpreter(part.graph, part.opset, outputs=part.outputs)

    def run(self, values: Values) -> Tensors:
        """Return the outputs without the gradients."""
        return self.interpreter.run(values)

    def differentiate(self, values: Values) -> Tensors:
        """Return the outputs, including the gradients; zero with respect to a state that the value does not read."""
        states = [tf.identity(values[name]) for name in self.names]  # of their own, if two states are one tensor
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for state in states:
                tape.watch(state)
            results = self.run({**values, **dict(zip(self.names, states, strict=True))})
            y = tf.reduce_sum(results[self.y])
        gradients = tape.gradient(y, states, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        found = {name: tf.convert_to_tensor(g) for name, g in zip(self.names, gradients, strict=True)}
        return {**results, **{gradient: found[x] for gradient, x in self.state_of.items()}}


class Step:
    """The step of a training entry: `step(values)` returns its outputs and the new state."""

    def __init__(self, entry: Entry, gradients: str = "auto") -> None:
        reason = why_not(entry)
        if reason and gradients == "tape":
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"GradientTape cannot find the gradients of entry `{entry.name}`: {reason}",
                    hint='use gradients="graph", or "auto"',
                )
            )
        self.entry = entry
        self.reason = reason  # why there is no `forward`
        self.forward: Forward | None = None
        if reason or gradients == "graph":
            self.graph = Interpreter(entry.step.copy_model().graph, entry.step.opset)
            self.input_names: tuple[str, ...] = entry.step.input_names
            return
        assert entry.gradients is not None
        assert entry.update is not None
        self.forward = Forward(entry.gradients)
        self.graph = Interpreter(entry.update.copy_model().graph, entry.update.opset)
        read = [n for n in entry.update.input_names if n not in entry.gradients.outputs]
        self.input_names = tuple(dict.fromkeys([*self.forward.input_names, *read]))

    @property
    def kind(self) -> str:
        """How gradients are found: by "tape" or in the "graph"."""
        return "graph" if self.forward is None else "tape"

    def __call__(self, values: Values) -> tuple[Tensors, Tensors]:
        """Return the outputs, and the state that replaces the old one, all at once."""
        gradients, update = self.entry.gradients, self.entry.update
        if self.forward is None or gradients is None or update is None:
            step = self.entry.step
            results = self.graph.run(values)
            return {n: results[n] for n in step.outputs}, {s: results[o] for o, s in step.replaces.items()}
        results = self.forward.differentiate(values)
        read = update.input_names
        following = self.graph.run({**values, **{n: results[n] for n in gradients.outputs if n in read}})
        state = {s: results[o] for o, s in gradients.replaces.items()}
        state.update({s: following[o] for o, s in update.replaces.items()})
        seen = [n for n in gradients.outputs if n in self.entry.step.outputs and n not in read]
        return {n: results[n] for n in seen}, state
