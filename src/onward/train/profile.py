"""`Profile`: where the time of a training step goes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward import notebook
from onward.arguments import check_path
from onward.backends.measurement import (
    BACKWARD,
    FEEDING,
    FORWARD,
    GRAPH,
    READING,
    SESSION,
    UPDATE,
    Measurement,
    OperatorTime,
)
from onward.errors import A101, ArgumentError, Diagnostic
from onward.storage import atomic
from onward.train.profile_units import TimeUnit, time_unit

DATA, BETWEEN = "data", "between operators"
_ORDER = (DATA, FEEDING, FORWARD, BACKWARD, GRAPH, BETWEEN, UPDATE, READING, SESSION)
OTHER = "(other)"
_STEADY = 1.5  # times the lower quartile of the steps may be the upper one


@dataclasses.dataclass(frozen=True)
class PhaseTime:
    """A phase of a step: its seconds of the median step, and the quartiles over all steps."""

    name: str
    seconds: float
    low: float
    high: float
    share: float
    """Of the whole step, which takes place beside the reading of the data."""


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


@dataclasses.dataclass(frozen=True)
class OperatorKind:
    """All operators of one kind in a step, whatever their layer and phase."""

    operator: str
    """The runtime's name, such as `FusedConv`."""
    calls: int
    seconds: float
    share: float
    operations: int
    bytes: int
    of_peak: float | None


@dataclasses.dataclass
class _Sum:
    """What some operators take together."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    operations: int = 0
    bytes: int = 0
    ideal: float = 0.0
    calls: int = 0

    @property
    def whole(self) -> float:
        return sum(self.seconds.values())


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
        return _quartiles(self._totals)

    @property
    def warning(self) -> str:
        """What makes the numbers doubtful, in words; empty where nothing does."""
        low, _, high = self.step_seconds
        if high <= _STEADY * low:
            return ""
        return (
            "the times of the steps are far apart, probably because other programs use the machine; "
            "close them and measure again"
        )

    @functools.cached_property
    def phases(self) -> tuple[PhaseTime, ...]:
        """The phases in the order of a step; all but `data`, which come from another thread, add up to the step."""
        times = {name: (*self._spread(name), seconds) for name, seconds in self._seconds.items()}
        if self.measured.operators:
            low, high, graph = times.pop(GRAPH)
            parts = {phase: self._operators(phase) for phase in (FORWARD, BACKWARD, UPDATE)}
            parts[BETWEEN] = max(0.0, graph - sum(parts.values()))
            for name, seconds in parts.items():
                before = times.get(name, (0.0, 0.0, 0.0))
                share = seconds / graph if graph else 0.0
                times[name] = (before[0] + share * low, before[1] + share * high, before[2] + seconds)
        if self.data:
            low, median, high = _quartiles(self.data)
            times[DATA] = (low, high, median)
        whole = self.step_seconds[1] or 1.0
        known = [(name, *times[name]) for name in _ORDER if name in times and times[name][2] > 0]
        return tuple(PhaseTime(name, seconds, low, high, seconds / whole) for name, low, high, seconds in known)

    @functools.cached_property
    def operators(self) -> tuple[OperatorTime, ...]:
        """The operators in their order, as in the median step.

        The runtime may have met another load while they were timed: their times are scaled down where they are longer
        than the graph, and the pauses between them, in which the profiler worked too, share what is left.
        """
        found, graph = self.measured.operators, self._seconds.get(GRAPH, 0.0)
        scale = self.scale
        ends = [each.start + each.seconds for each in found]
        pauses = [max(0.0, after.start - end) for end, after in zip(ends, found[1:], strict=False)]
        rest = max(0.0, graph - scale * sum(each.seconds for each in found))
        share = rest / sum(pauses) if sum(pauses) else 0.0
        clock, made = 0.0, []
        for each, pause in zip(found, [*pauses, 0.0], strict=False):
            made.append(dataclasses.replace(each, start=clock, seconds=scale * each.seconds))
            clock += scale * each.seconds + share * pause
        return tuple(made)

    @property
    def scale(self) -> float:
        """The factor that makes the times of the operators fit into the graph; 1 where they do."""
        whole = sum(each.seconds for each in self.measured.operators)
        return min(1.0, self._seconds.get(GRAPH, 0.0) / whole) if whole else 1.0

    @functools.cached_property
    def layers(self) -> tuple[LayerTime, ...]:
        """The layers in the order of the forward pass; what belongs to none comes last."""
        whole = self.step_seconds[1] or 1.0
        sums = self._sums(lambda each: each.layer if each.phase in (FORWARD, BACKWARD) else None)
        known = {layer.name: layer for layer in self.measured.layers}
        times = []
        for name in [*(n for n in known if n in sums), *(n for n in sums if n not in known)]:
            layer, found = known.get(name), sums[name]
            times.append(
                LayerTime(
                    name or OTHER,
                    layer.operator if layer else "",
                    layer.path if layer else (),
                    found.seconds.get(FORWARD, 0.0),
                    found.seconds.get(BACKWARD, 0.0),
                    found.whole / whole,
                    found.operations,
                    found.bytes,
                    self._of_peak(found),
                )
            )
        return tuple(times)

    @functools.cached_property
    def kinds(self) -> tuple[OperatorKind, ...]:
        """The kinds of operators, the slowest first."""
        step = self.step_seconds[1] or 1.0
        found = [
            OperatorKind(name, s.calls, s.whole, s.whole / step, s.operations, s.bytes, self._of_peak(s))
            for name, s in self._sums(lambda each: each.operator).items()
        ]
        return tuple(sorted(found, key=lambda kind: -kind.seconds))

    @property
    def about_profiler(self) -> str:
        """What the times of the operators are without, in words; empty where no profiler of the runtime was used."""
        found, unit = self.measured.profiler, self.unit
        if found is None:
            return ""
        text = (
            f"timed in further steps, by the runtime's own profiler, with which the graph took "
            f"{unit.text(found.graph_seconds)} instead of {unit.text(self._seconds[GRAPH])}; "
            f"its cost is taken off: {found.seconds_per_operator * 1e6:.1f} µs for each of "
            f"{len(self.operators)} operators"
        )
        return text + (f"; the rest is scaled by {self.scale:.2f}, to fit the step" if self.scale < 1 else "")

    @property
    def unit(self) -> TimeUnit:
        """The unit in which the times are shown."""
        return time_unit(self.step_seconds[1])

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
            "warning": self.warning,
            "samples_per_second": self.samples / median if median else None,
            "phases": [dataclasses.asdict(p) for p in self.phases],
            "layers": [dataclasses.asdict(each) for each in self.layers],
            "kinds": [dataclasses.asdict(each) for each in self.kinds],
            "operators": [dataclasses.asdict(each) for each in self.operators],
            "profiler": measured.profiler and {**dataclasses.asdict(measured.profiler), "scale": self.scale},
            "operations": self.operations,
            "of_gemm_peak": self.of_gemm_peak,
            "peak_operations_per_second": measured.peak_operations,
            "peak_bytes_per_second": measured.peak_bytes,
            "memory_bytes": measured.memory,
            "allocated_bytes": measured.allocated,
        }

    def to_trace(self) -> dict[str, Any]:
        """Return one step as a trace that Perfetto and chrome://tracing read."""
        tracks = {1: "phases", 2: "operators", **({3: "data, for a later step"} if self.data else {})}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": self.title}},
            *({"ph": "M", "pid": 1, "tid": t, "name": "thread_name", "args": {"name": n}} for t, n in tracks.items()),
        ]

        def add(name: str, start: float, seconds: float, tid: int, **args: Any) -> None:
            event = {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": start * 1e6, "dur": seconds * 1e6}
            events.append({**event, "args": {k: v for k, v in args.items() if v}})

        if self.data:
            add(DATA, 0.0, statistics.median(self.data), 3)
        clock = 0.0
        for name in (FEEDING, GRAPH, UPDATE, READING, SESSION):
            if seconds := self._seconds.get(name, 0.0):
                add(name, clock, seconds, 1)
                if name == GRAPH:
                    self._trace_operators(add, clock)
                clock += seconds
        about = {"operators": self.about_profiler} if self.about_profiler else {}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}

    def _trace_operators(self, add: Callable[..., None], begun: float) -> None:
        """Add the operators, and each run of operators of one phase as a part of the graph."""
        for phase, run in itertools.groupby(self.operators, lambda each: each.phase):
            each = list(run)
            add(phase, begun + each[0].start, each[-1].start + each[-1].seconds - each[0].start, 1)
        for o in self.operators:
            add(
                o.operator, begun + o.start, o.seconds, 2,
                node=o.name, phase=o.phase, layer=o.layer, shapes=o.shapes, operations=o.operations, bytes=o.bytes,
            )  # fmt: skip

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
        slowest, unit = sorted(self.layers, key=lambda each: -each.seconds)[:12], self.unit
        phases = [
            {"phase": p.name, unit.name: p.seconds / unit.seconds, "share": f"{p.share:.0%}"} for p in self.phases
        ]
        layers = [
            {
                "layer": e.name,
                "operator": e.operator,
                f"forward {unit.name}": e.forward / unit.seconds,
                f"backward {unit.name}": e.backward / unit.seconds,
                "share": f"{e.share:.1%}",
            }
            for e in slowest
        ]
        title = f"{self.title}: {unit.text(self.step_seconds[1])} per step"
        note = f"operators: {self.about_profiler}" if self.about_profiler else ""
        return notebook.panel(title, notebook.grid(phases), notebook.grid(layers, note=note) if layers else "")

    @functools.cached_property
    def _totals(self) -> list[float]:
        """The seconds of each step."""
        return [sum(each) for each in zip(*self.measured.phases.values(), strict=True)]

    @functools.cached_property
    def _seconds(self) -> dict[str, float]:
        """The seconds of each measured phase in the median step: the medians of the phases would not add up to it.

        They are means over the middle half of the steps, times a number near 1.
        """
        order = sorted(range(self.steps), key=self._totals.__getitem__)
        middle = order[self.steps // 4 : self.steps - self.steps // 4]
        sums = {name: sum(seconds[k] for k in middle) for name, seconds in self.measured.phases.items()}
        whole = sum(sums.values())
        return {name: seconds / whole * self.step_seconds[1] if whole else 0.0 for name, seconds in sums.items()}

    def _spread(self, phase: str) -> tuple[float, float]:
        low, _, high = _quartiles(self.measured.phases[phase])
        return low, high

    def _operators(self, phase: str) -> float:
        return sum(each.seconds for each in self.operators if each.phase == phase)

    def _sums(self, key: Callable[[OperatorTime], str | None]) -> dict[str, _Sum]:
        """Return what the operators with the same key take together, without those with none."""
        sums: dict[str, _Sum] = {}
        for each in self.operators:
            if (name := key(each)) is not None:
                found = sums.setdefault(name, _Sum())
                found.calls += 1
                found.seconds[each.phase] = found.seconds.get(each.phase, 0.0) + each.seconds
                found.operations += each.operations
                found.bytes += each.bytes
                found.ideal += self._ideal(each.operations, each.bytes)
        return sums

    def _of_peak(self, found: _Sum) -> float | None:
        return found.ideal / found.whole if self.measured.peak_operations and found.whole else None

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
