"""Run a whole model on JAX."""

from __future__ import annotations

from onward.backends.graph import runner
from onward.backends.graph.foreign import WithForeign
from onward.backends.jax import interpreter
from onward.backends.jax.tensors import to_numpy


class Interpreter(WithForeign, interpreter.Interpreter):
    """A graph ready to run on JAX, with nodes for text and the like on the host."""

    to_numpy = staticmethod(to_numpy)
    absent_on_host = True


class Runner(runner.Runner):
    """A model ready to run on JAX; `run(feeds)` returns its outputs in order."""

    interpreter = Interpreter
