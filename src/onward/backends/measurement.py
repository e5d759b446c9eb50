"""What a backend measures of a training step: the times of its phases and of its operators."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

FEEDING, FORWARD, BACKWARD, UPDATE = "feeding", "forward", "backward", "update"
READING, SESSION, GRAPH = "reading back", "session", "graph"
"""Phases of a step. `SESSION` is what the backend itself does around the others. `GRAPH` is forward, backward and
update together, where a backend cannot tell them apart."""

WARM_UP = 3
"""Steps before the first measured one, in which graphs are loaded and memory is reserved."""


@dataclasses.dataclass(frozen=True)
class OperatorTime:
    """One operator as the runtime ran it: the mean of the middle half of its times."""

    operator: str
    """The runtime's name, such as `FusedConv`."""
    name: str
    phase: str
    layer: str
    """The node of the forward pass that it computes or differentiates; empty for the update."""
    start: float
    """Seconds after the first operator of a step."""
    seconds: float
    operations: int = 0
    """Floating-point operations of matrix products, convolutions and recurrent layers."""
    bytes: int = 0
    """What it reads and writes, if nothing stays in a cache."""
    shapes: str = ""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A node of the forward pass, and the parts of the model that it is in, outermost first."""

    name: str
    operator: str
    path: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Profiler:
    """What a runtime's profiler cost; the times of the operators are without it."""

    graph_seconds: float
    """The median of the graph with the profiler on."""
    seconds_per_operator: float
    """What was taken off the time of each operator."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The times of some training steps."""

    phases: Mapping[str, Sequence[float]]
    """The seconds of each phase, one number per step, as the backend runs it when nobody looks."""
    operators: tuple[OperatorTime, ...] = ()
    """Empty for a backend that does not time its operators."""
    layers: tuple[Layer, ...] = ()
    threads: int | None = None
    peak_operations: float | None = None
    """Floating-point operations per second of a large matrix product on this runtime."""
    peak_bytes: float | None = None
    """Bytes per second of an element-wise operator on large arrays on this runtime."""
    memory: int | None = None
    """The most bytes that the values of the graph took at once."""
    allocated: int | None = None
    """The bytes of all the values that the operators made in one step."""
    profiler: Profiler | None = None
    """What the runtime's profiler cost, where the times of the operators come from one."""

    def median(self, phase: str) -> float:
        """Return the median seconds of a phase; 0 where there is none."""
        return statistics.median(self.phases[phase]) if self.phases.get(phase) else 0.0


def middle(seconds: Sequence[float]) -> float:
    """Return the mean of the middle half of some times: finer than a median where a clock counts whole microseconds.

    >>> middle([1.0, 2.0, 3.0, 4.0, 50.0])
    3.0
    """
    cut = len(seconds) // 4
    return statistics.fmean(sorted(seconds)[cut : len(seconds) - cut])
