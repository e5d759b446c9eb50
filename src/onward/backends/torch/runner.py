"""Run a whole model on PyTorch."""

from __future__ import annotations

from onward.backends.graph import runner
from onward.backends.torch import interpreter


class Interpreter(interpreter.Interpreter):
    """A graph ready to run on PyTorch, with the operators that PyTorch lacks on the host."""

    absent_on_host = True


class Runner(runner.Runner):
    """A model ready to run on PyTorch; `run(feeds)` returns its outputs in order."""

    interpreter = Interpreter
