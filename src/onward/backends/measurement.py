"""What a backend measures of a training step: the times of its phases and of its operators."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

FEEDING, FORWARD, BACKWARD, UPDATE = "feeding", "forward", "backward", "update"
READING, GRAPH = "reading back", "graph"
"""Phases of a step. `GRAPH` is forward, backward and update together, where a backend cannot tell them apart."""

WARM_UP = 3
"""Steps before the first measured one, in which graphs are loaded and memory is reserved."""


@dataclasses.dataclass(frozen=True)
class OperatorTime:
    """One operator as the runtime ran it: its median over the measured steps."""

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

    def median(self, phase: str) -> float:
        """Return the median seconds of a phase; 0 where there is none."""
        return statistics.median(self.phases[phase]) if self.phases.get(phase) else 0.0
