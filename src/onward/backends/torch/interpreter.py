"""Run an ONNX graph with PyTorch operators; autograd records a run, and `torch.compile` and `torch.export` trace it."""

from __future__ import annotations

from typing import Any

import torch

from onward.backends.graph import interpreter as core
from onward.backends.graph.foreign import WithForeign
from onward.backends.graph.interpreter import Instruction
from onward.backends.torch.framework import TORCH
from onward.backends.torch.tensors import to_numpy
from onward.errors import BackendError

FAILURES = TORCH.failures


class Interpreter(WithForeign):
    """A graph ready to run on PyTorch: `run({name: tensor})` returns its outputs by name."""

    framework = TORCH
    to_numpy = staticmethod(to_numpy)
    _narrow: torch.dtype | None = None

    def to(self, device: torch.device) -> None:
        """Move the constants to `device`."""
        for slot, value in self.constants.items():
            if isinstance(value, torch.Tensor):
                self.constants[slot] = value.to(device)

    def narrow(self, dtype: torch.dtype | None) -> None:
        """Compute in a 16-bit type wherever an input has it, although the graph was written for float32."""
        self._narrow = dtype
        for instruction in self.instructions:
            for body in instruction.bodies:
                assert isinstance(body.interpreter, Interpreter)
                body.interpreter.narrow(dtype)

    def call(self, instruction: Instruction, arguments: list[Any]) -> Any:
        if self._narrow is not None and any(isinstance(a, torch.Tensor) and a.dtype == self._narrow for a in arguments):
            arguments = [
                a.to(self._narrow) if isinstance(a, torch.Tensor) and a.dtype == torch.float32 else a for a in arguments
            ]
        return super().call(instruction, arguments)


def failure(what: str, error: Exception) -> BackendError:
    """Return the error for an exception that ended a run of `what`, with the node at which it did."""
    return core.failure(TORCH, what, error)
