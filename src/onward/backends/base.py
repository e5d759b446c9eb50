"""The base class of every backend's session: it holds the state of a `Program` and runs its graphs.

A backend supplies the abstract methods and nothing else. The training loop, data, metrics and checkpoints exist once,
in `onward.train`.
"""

from __future__ import annotations

import abc
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onward.arguments import check_name, check_names
from onward.autodiff.profile import DEFAULT
from onward.backends.measurement import GRAPH, WARM_UP, Measurement
from onward.backends.state import evaluation_graph, initial_state
from onward.compiler.program import PlainGraph, Program

Feeds = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]


class Session(abc.ABC):
    """A running program. It owns the current state and is not thread safe."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @property
    def processes(self) -> int:
        """The number of processes that train together. They must not let their clocks decide anything."""
        return 1

    @property
    def writer(self) -> bool:
        """Whether this process writes files and prints: with several processes, only the first does."""
        return True

    @property
    def sharded(self) -> bool:
        """Whether this process holds only a part of the state. All processes must then call `get_state` together."""
        return False

    @property
    def makes_self_tests(self) -> bool:
        """Whether the self-tests of programs are made with this very runtime, so that they prove nothing about it."""
        return False

    @property
    def verifies(self) -> bool:
        """Whether it compares every graph with ONNX Runtime's CPU kernels itself, before it uses a result."""
        return False

    def whole_batch(self, feeds: Feeds) -> Outputs:
        """Return the batch of all processes, which must call this together."""
        return dict(feeds)

    @abc.abstractmethod
    def step(self, feeds: Feeds, *, entry: str | None = None) -> Outputs:
        """Run one training step and replace the state.

        `feeds` holds the batch (inputs and targets) and may override settings such as `learning_rate`. `entry` names
        one training entry; None runs all of them in turn. Returns the outputs of the step, the loss among them.
        """

    @abc.abstractmethod
    def run_graph(self, graph: PlainGraph, feeds: Feeds) -> Outputs:
        """Return the outputs of one graph of the program for `feeds`; other inputs are settings and current state."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the whole state by name."""

    @abc.abstractmethod
    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace the named parts of the state; unknown names or shapes are an error."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what influences the numbers (backend, versions, threads, providers); stored in checkpoints."""

    def evaluate(self, feeds: Feeds, *, entry: str | None = None) -> Outputs:
        """Return the loss of an entry (the first for None) and the outputs in inference mode; the state stays."""
        return self.run_graph(evaluation_graph(self.program, entry), feeds)

    def infer(self, feeds: Feeds) -> Outputs:
        """Return the outputs of the inference graph for `feeds`, with the current parameters."""
        return self.run_graph(self.program.infer_graph, feeds)

    def initialize(self, seed: int = 0) -> None:
        """Set the state as the program's initialize graph says; `seed` chooses the random numbers."""
        self.set_state(initial_state(self.program, seed, self.run_graph))

    def measure(self, feeds: Feeds, *, entry: str, steps: int) -> Measurement:
        """Return the times of `steps` steps of one entry on one batch; the state stays as it is.

        A backend that can time its phases and operators overrides this.
        """
        before = self.get_state()
        seconds = []
        try:
            for _ in range(WARM_UP + steps):
                began = time.perf_counter()
                self.step(feeds, entry=entry)
                seconds.append(time.perf_counter() - began)
        finally:
            self.set_state(before)
        return Measurement({GRAPH: seconds[WARM_UP:]})


def make_session(
    factory: Callable[..., Session], backend: str, program: Program, options: Mapping[str, Any]
) -> Session:
    """Return `factory(program, **options)`.

    Raises:
        ArgumentError: options that the factory does not have; the message lists those it has.
    """
    valid = list(inspect.signature(factory).parameters)[1:]  # the first is the program
    check_names(f"option of backend `{backend}`", options, valid)
    return factory(program, **options)


BackendFactory = Callable[..., Session]
_BACKENDS: dict[str, BackendFactory] = {}
_SPLIT: set[str] = set()
_PROFILES: dict[str, str] = {}


def register_backend(name: str, factory: BackendFactory, *, split: bool = False, profile: str = DEFAULT) -> None:
    """Make `factory(program, **options) -> Session` available as `backend=name`.

    With `split`, the programs that a Trainer makes for it have gradients and update as graphs of their own, too.
    `profile` is the profile of these programs, where the caller does not choose: `"portable"` for a runtime that gets
    something wrong that the deny-list names (docs/portable.md).
    """
    _BACKENDS[name] = factory
    (_SPLIT.add if split else _SPLIT.discard)(name)
    _PROFILES[name] = profile


def wants_split(backend: str) -> bool:
    """Return whether a backend uses the graphs that `compile(..., split=True)` adds."""
    return backend in _SPLIT


def profile_of(backend: str) -> str:
    """Return the profile of the programs that a backend runs, where the caller does not choose."""
    return _PROFILES.get(backend, DEFAULT)


def open_session(program: Program, backend: str, **options: Any) -> Session:
    """Return a session of the named backend.

    Raises:
        ArgumentError: the backend or an option is not known; the message lists those that are.
    """
    check_name("backend", backend, _BACKENDS)
    return _BACKENDS[backend](program, **options)
