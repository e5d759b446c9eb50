"""`Profile`: where the time of a training step goes."""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onward import notebook
from onward.arguments import check_path
from onward.backends.measurement import BACKWARD, FEEDING, FORWARD, GRAPH, READING, UPDATE, Measurement
from onward.errors import A101, ArgumentError, Diagnostic
from onward.storage import atomic

DATA, BETWEEN = "data", "between operators"
_ORDER = (DATA, FEEDING, FORWARD, BACKWARD, GRAPH, BETWEEN, UPDATE, READING)
OTHER = "(other)"


@dataclasses.dataclass(frozen=True)
class PhaseTime:
    """A phase of a step: its median seconds, and the quartiles."""

    name: str
    seconds: float
    low: float
    high: float
    share: float
    """Of the whole step."""


@dataclasses.dataclass(frozen=True)
class LayerTime:
    """A node of the forward pass, with the time of its backward."""

    name: str
    operator: str
    path: tuple[str, ...]
    """The parts of the model that it is in, outermost first."""
    forward: float
    backward: float
    share: float
    operations: int
    """Floating-point operations of its products, forward and backward."""
    bytes: int
    of_peak: float | None
    """How much of its time an ideal kernel would need: one at the machine's rate of products or of memory."""

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


@dataclasses.dataclass
class _Sum:
    """What the operators of one layer take together."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    operations: int = 0
    bytes: int = 0
    ideal: float = 0.0


@dataclasses.dataclass(frozen=True)
class Profile:
    """Where the time of a training step goes: by phase, by layer and by operator.

    A notebook shows it as a table. `save` writes a page (.html), a trace for Perfetto or chrome://tracing
    (.trace.json), or all numbers (.json).
    """

    title: str
    backend: str
    batch: Mapping[str, tuple[int, ...]]
    measured: Measurement
    data: Sequence[float] = ()
    """Seconds to read and prepare each batch; empty for a batch that was made up."""

    @property
    def steps(self) -> int:
        """The number of measured steps."""
        return max((len(seconds) for seconds in self.measured.phases.values()), default=0)

    @functools.cached_property
    def step_seconds(self) -> tuple[float, float, float]:
        """The lower quartile, the median and the upper quartile of a whole step, without the data."""
        return _quartiles([sum(each) for each in zip(*self.measured.phases.values(), strict=True)])

    @functools.cached_property
    def phases(self) -> tuple[PhaseTime, ...]:
        """The phases in the order of a step."""
        times = {name: _quartiles(seconds) for name, seconds in self.measured.phases.items()}
        if self.measured.operators:
            low, graph, high = times.pop(GRAPH)
            parts = {p: self._operators(p) for p in (FORWARD, BACKWARD, UPDATE)}
            inside = sum(parts.values())
            factor = min(1.0, graph / inside) if inside else 1.0  # the profiled steps may have met another load
            parts = {p: seconds * factor for p, seconds in parts.items()}
            parts[BETWEEN] = max(0.0, graph - sum(parts.values()))
            for name, seconds in parts.items():
                before = times.get(name, (0.0, 0.0, 0.0))
                spread = [seconds * q / graph if graph else 0.0 for q in (low, graph, high)]
                times[name] = (before[0] + spread[0], before[1] + spread[1], before[2] + spread[2])
        if self.data:
            times[DATA] = _quartiles(self.data)
        whole = self.step_seconds[1] or 1.0
        known = [name for name in _ORDER if times.get(name, (0, 0, 0))[1] > 0]
        return tuple(PhaseTime(n, times[n][1], times[n][0], times[n][2], times[n][1] / whole) for n in known)

    @functools.cached_property
    def layers(self) -> tuple[LayerTime, ...]:
        """The layers in the order of the forward pass; what belongs to none comes last."""
        whole = self.step_seconds[1] or 1.0
        sums: dict[str, _Sum] = {}
        for each in self.measured.operators:
            if each.phase in (FORWARD, BACKWARD):
                found = sums.setdefault(each.layer, _Sum())
                found.seconds[each.phase] = found.seconds.get(each.phase, 0.0) + each.seconds
                found.operations += each.operations
                found.bytes += each.bytes
                found.ideal += self._ideal(each.operations, each.bytes)
        known = {layer.name: layer for layer in self.measured.layers}
        times = []
        for name in [*(n for n in known if n in sums), *(n for n in sums if n not in known)]:
            layer, found = known.get(name), sums[name]
            seconds = sum(found.seconds.values())
            times.append(
                LayerTime(
                    name or OTHER,
                    layer.operator if layer else "",
                    layer.path if layer else (),
                    found.seconds.get(FORWARD, 0.0),
                    found.seconds.get(BACKWARD, 0.0),
                    seconds / whole,
                    found.operations,
                    found.bytes,
                    found.ideal / seconds if self.measured.peak_operations and seconds else None,
                )
            )
        return tuple(times)

    @property
    def operations(self) -> int:
        """The floating-point operations of all matrix products, convolutions and recurrent layers of a step."""
        return sum(each.operations for each in self.measured.operators)

    @property
    def of_gemm_peak(self) -> float | None:
        """The rate of the whole step relative to that of a large matrix product."""
        peak = self.measured.peak_operations
        return self.operations / self.step_seconds[1] / peak if peak and self.step_seconds[1] else None

    @property
    def samples(self) -> int:
        """The number of samples in the batch."""
        return next((shape[0] for shape in self.batch.values() if shape), 1)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, as JSON can hold them."""
        measured = self.measured
        low, median, high = self.step_seconds
        return {
            "title": self.title,
            "backend": self.backend,
            "threads": measured.threads,
            "batch": {name: list(shape) for name, shape in self.batch.items()},
            "steps": self.steps,
            "step_seconds": {"median": median, "low": low, "high": high},
            "samples_per_second": self.samples / median if median else None,
            "phases": [dataclasses.asdict(p) for p in self.phases],
            "layers": [dataclasses.asdict(each) for each in self.layers],
            "operators": [dataclasses.asdict(each) for each in measured.operators],
            "operations": self.operations,
            "of_gemm_peak": self.of_gemm_peak,
            "peak_operations_per_second": measured.peak_operations,
            "peak_bytes_per_second": measured.peak_bytes,
            "memory_bytes": measured.memory,
            "allocated_bytes": measured.allocated,
        }

    def to_trace(self) -> dict[str, Any]:
        """Return one step as a trace that Perfetto and chrome://tracing read."""
        phases = {p.name: p.seconds for p in self.phases}
        clock = 0.0
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": self.title}},
            *(
                {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
                for tid, name in ((1, "phases"), (2, "operators"))
            ),
        ]

        def add(name: str, start: float, seconds: float, tid: int, **args: Any) -> None:
            event = {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": start * 1e6, "dur": seconds * 1e6}
            events.append({**event, "args": {k: v for k, v in args.items() if v}})

        for name in (DATA, FEEDING):
            if name in phases:
                add(name, clock, phases[name], 1)
                clock += phases[name]
        begun = clock
        for each in self.measured.operators:
            add(
                each.operator, begun + each.start, each.seconds, 2,
                node=each.name, phase=each.phase, layer=each.layer, shapes=each.shapes,
                operations=each.operations, bytes=each.bytes,
            )  # fmt: skip
            clock = max(clock, begun + each.start + each.seconds)
        if not self.measured.operators:
            clock += phases.get(GRAPH, 0.0)
        add(GRAPH, begun, clock - begun, 1)
        for name, seconds in ((UPDATE, self.measured.median(UPDATE)), (READING, phases.get(READING, 0.0))):
            if seconds:
                add(name, clock, seconds, 1)
                clock += seconds
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def to_html(self) -> str:
        """Return a page with the phases, the layers as a flame chart, and a table."""
        from onward.train.profile_page import build_page

        return build_page(self)

    def save(self, path: str | Path) -> Path:
        """Write a page (.html), a trace (.trace.json) or all numbers (.json), and return the path.

        Raises:
            ArgumentError: the name has another ending.
        """
        check_path("path", path)
        target = Path(path)
        if target.suffix not in (".html", ".json"):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"a profile cannot be written as `{target.name}`",
                    needed="a name in .html (a page), .trace.json (a trace for Perfetto) or .json (all numbers)",
                )
            )
        if target.suffix == ".html":
            text = self.to_html()
        else:
            text = json.dumps(self.to_trace() if target.name.endswith(".trace.json") else self.to_dict())
        atomic.write_atomic(target, [text.encode("utf-8")])
        return target

    def _repr_html_(self) -> str:
        slowest = sorted(self.layers, key=lambda each: -each.seconds)[:12]
        phases = [{"phase": p.name, "ms": p.seconds * 1e3, "share": f"{p.share:.0%}"} for p in self.phases]
        layers = [
            {"layer": e.name, "operator": e.operator, "forward ms": e.forward * 1e3, "backward ms": e.backward * 1e3}
            for e in slowest
        ]
        title = f"{self.title}: {self.step_seconds[1] * 1e3:.2f} ms per step"
        return notebook.panel(title, notebook.grid(phases), notebook.grid(layers) if layers else "")

    def _operators(self, phase: str) -> float:
        return sum(each.seconds for each in self.measured.operators if each.phase == phase)

    def _ideal(self, operations: int, moved: int) -> float:
        """Return the seconds that an operator would take at the peak rates of the machine."""
        measured = self.measured
        if not measured.peak_operations or not measured.peak_bytes:
            return 0.0
        return max(operations / measured.peak_operations, moved / measured.peak_bytes)


def _quartiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile.

    >>> _quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(seconds) < 2:
        only = seconds[0] if seconds else 0.0
        return only, only, only
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, median, high
