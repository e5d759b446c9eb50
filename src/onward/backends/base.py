"""What a backend is: something that turns a `Program` into a `Session` that holds the state and runs the graphs.

A backend supplies these few methods and nothing else; the training loop, data, metrics and checkpoints exist once,
in `onward.train`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from onward.compiler.program import Program
from onward.errors import ArgumentError, unknown_name

Feeds = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]


class Session(Protocol):
    """One running program: it owns the current state. Not thread safe."""

    program: Program

    def step(self, feeds: Feeds, *, entry: str | None = None) -> Outputs:
        """Run one training step and replace the state.

        `feeds` holds the batch (inputs and targets) and may override settings such as `learning_rate`. `entry` names
        one training entry; None runs all of them in turn. Returns the outputs of the step, the loss among them.
        """

    def evaluate(self, feeds: Feeds) -> Outputs:
        """Return the loss and the outputs in inference mode; the state stays as it is."""

    def infer(self, feeds: Feeds) -> Outputs:
        """Return the outputs of the inference graph for `feeds`, with the current parameters."""

    def initialize(self, seed: int = 0) -> None:
        """Set the state as the program's initialize graph says; `seed` chooses the random numbers."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the whole state by name."""

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace the named parts of the state; unknown names or shapes are an error."""

    def describe(self) -> dict[str, Any]:
        """Return what influences the numbers (backend, versions, threads, providers); stored in checkpoints."""


def make_session(
    factory: Callable[..., Session], backend: str, program: Program, options: Mapping[str, Any]
) -> Session:
    """Return `factory(program, **options)`.

    Raises:
        ArgumentError: options that the factory does not have; the message lists those it has.
    """
    valid = list(inspect.signature(factory).parameters)[1:]  # the first is the program
    unknown = [unknown_name(f"option of backend `{backend}`", name, valid) for name in options if name not in valid]
    if unknown:
        raise ArgumentError([d for error in unknown for d in error.diagnostics])
    return factory(program, **options)


BackendFactory = Callable[..., Session]
_BACKENDS: dict[str, BackendFactory] = {}
_SPLIT: set[str] = set()


def register_backend(name: str, factory: BackendFactory, *, split: bool = False) -> None:
    """Make `factory(program, **options) -> Session` available as `backend=name`.

    With `split`, the programs that a Trainer makes for it have gradients and update as graphs of their own, too.
    """
    _BACKENDS[name] = factory
    (_SPLIT.add if split else _SPLIT.discard)(name)


def wants_split(backend: str) -> bool:
    """Return whether a backend uses the graphs that `compile(..., split=True)` adds."""
    return backend in _SPLIT


def open_session(program: Program, backend: str, **options: Any) -> Session:
    """Return a session of the named backend.

    Raises:
        ArgumentError: the backend or an option is not known; the message lists those that are.
    """
    if not isinstance(backend, str) or backend not in _BACKENDS:
        raise unknown_name("backend", backend, _BACKENDS)
    return _BACKENDS[backend](program, **options)
