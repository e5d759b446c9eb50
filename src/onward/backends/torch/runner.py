"""Run a whole model on PyTorch."""

from __future__ import annotations

from onward.backends.graph import runner
from onward.backends.torch.interpreter import Interpreter


class Runner(runner.Runner):
    """A model ready to run on PyTorch; `run(feeds)` returns its outputs in order."""

    interpreter = Interpreter
