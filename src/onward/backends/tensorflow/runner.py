"""Run a whole model on TensorFlow."""

from __future__ import annotations

from onward.backends.graph import runner
from onward.backends.graph.foreign import WithForeign
from onward.backends.tensorflow import interpreter
from onward.backends.tensorflow.tensors import to_numpy


class Interpreter(WithForeign, interpreter.Interpreter):
    """A graph ready to run on TensorFlow, with nodes for text and the like on the host."""

    to_numpy = staticmethod(to_numpy)
    absent_on_host = True


class Runner(runner.Runner):
    """A model ready to run on TensorFlow; `run(feeds)` returns its outputs in order."""

    interpreter = Interpreter
