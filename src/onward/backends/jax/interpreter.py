"""Run an ONNX graph with JAX operators, eagerly or while `jax.jit`, `jax.grad` or `jax.vmap` traces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from onward.backends.graph import interpreter as core
from onward.backends.graph.host import run_on_host
from onward.backends.graph.interpreter import Instruction
from onward.backends.jax import layout
from onward.backends.jax.framework import JAX, is_traced
from onward.backends.jax.tensors import wide
from onward.errors import BackendError

FAILURES = JAX.failures


class Interpreter(core.Interpreter):
    """A graph ready to run on JAX: `run({name: array})` returns its outputs by name."""

    framework = JAX

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        with wide():
            return super().run(feeds)

    def call(self, instruction: Instruction, arguments: list[Any]) -> Any:
        for body in instruction.bodies:
            body.values = {name: layout.plain(value) for name, value in body.values.items()}
        captured = [v for b in instruction.bodies for v in b.values.values()]
        known = run_on_host(instruction.op_type, instruction.attributes, arguments)
        if known is not None:
            return known
        if any(is_traced(a) for a in (*arguments, *captured)):
            return layout.call(self.plain, instruction, arguments)
        with jax.ensure_compile_time_eval():  # what depends on constants only stays known while JAX traces
            return layout.call(self.plain, instruction, arguments)


def failure(what: str, error: Exception) -> BackendError:
    """Return the error for an exception that ended a run of `what`, with the node at which it did."""
    return core.failure(JAX, what, error)
