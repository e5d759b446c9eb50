"""One training entry as a session of ONNX Runtime runs it, and the memory that a step reads and writes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from onward.backends.onnxruntime.fused_update import FlatBuffers
from onward.backends.onnxruntime.row_gradients import RowBuffer
from onward.compiler.program import PlainGraph
from onward.graph import shapes

Sizes = tuple[tuple[str, int], ...]  # free dimensions by name


@dataclasses.dataclass
class Step:
    """One training entry, ready to run: what ONNX Runtime computes and what the fused update does after it."""

    graph: PlainGraph
    model: ir.Model  # what ONNX Runtime computes: the whole step, or all but the fused update
    replaces: dict[str, str]  # the graph's own outputs that replace a state
    in_place: frozenset[str] = frozenset()  # states that the fused update replaces
    scalars: tuple[str, ...] = ()
    buffers: list[FlatBuffers] = dataclasses.field(default_factory=list)
    gradients: dict[str, onnxruntime.OrtValue] = dataclasses.field(default_factory=dict)
    rows: list[RowBuffer] = dataclasses.field(default_factory=list)
    copied: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    bound: dict[tuple[Any, ...], Bound] = dataclasses.field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    free: dict[str, list[str | None]] = dataclasses.field(default_factory=dict)  # input -> names of free dimensions
    usual: Sizes | None = None  # the sizes of the first batch, for which a session is specialised

    def __post_init__(self) -> None:
        self.inputs = tuple(v.name or "" for v in self.model.graph.inputs)
        for value in self.model.graph.inputs:
            names = [d if isinstance(d, str) else None for d in shapes.dims(value) or ()]
            if any(names):
                self.free[value.name or ""] = names

    def sizes(self, feeds: Mapping[str, np.ndarray]) -> Sizes:
        """Return the sizes of the free dimensions in a batch."""
        found: dict[str, int] = {}
        for name, dimensions in self.free.items():
            if name in feeds:
                for dimension, size in zip(dimensions, np.shape(feeds[name]), strict=False):
                    if dimension is not None and found.setdefault(dimension, size) != size:
                        return ()  # ONNX Runtime will say what does not fit
        return tuple(sorted(found.items()))

    @property
    def threads(self) -> int:
        """Threads of the fused update."""
        return max((buffers.threads for buffers in self.buffers), default=1)

    @functools.cached_property
    def fetched(self) -> list[str]:
        """Outputs whose shapes may change with the batch."""
        rows = [n for buffer in self.rows for n in (buffer.source.indices, buffer.source.rows)]
        return list(dict.fromkeys([*self.graph.outputs, *self.scalars, *rows]))


class Bound:
    """The memory of the steps of one size: where ONNX Runtime reads the state and writes the results.

    With `keep`, results keep the memory that they got at the first step, so that a step is little more than a run of
    the session.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        read: Mapping[str, onnxruntime.OrtValue],
        written: Mapping[str, onnxruntime.OrtValue],
        fetched: Sequence[str],
        *,
        keep: bool = False,
    ) -> None:
        self.binding = session.io_binding()
        for name, value in read.items():
            self.binding.bind_ortvalue_input(name, value)
        for name, value in written.items():
            self.binding.bind_ortvalue_output(name, value)
        self._first, self._fetched = len(written), fetched
        self._keep = keep
        self._given: dict[str, Any] = {}
        self._kept: dict[str, np.ndarray] = {}

    def feed(self, names: Sequence[str], given: Mapping[str, Any]) -> None:
        """Let the session read the arrays of a batch."""
        for name in names:
            value = given[name]
            if value is self._given.get(name):
                continue  # the session reads this memory already
            self.binding.bind_cpu_input(name, np.ascontiguousarray(value).reshape(np.shape(value)))
            shared = isinstance(value, np.ndarray) and value.flags.c_contiguous
            self._given[name] = value if shared else None
        if not self._kept:
            self._bind_fetched()

    def _bind_fetched(self) -> None:
        for name in self._fetched:  # again at each step: their shapes may change with the batch
            self.binding.bind_output(name)

    def let_go(self) -> bool:
        """Let the results have new memory from now on; return whether they had kept some."""
        kept, self._kept, self._keep = self._kept, {}, False
        if kept:
            self._bind_fetched()
        return bool(kept)

    def results(self) -> dict[str, np.ndarray]:
        """Return what the session computed; the next step may write over it."""
        if self._kept:
            return self._kept
        values = self.binding.get_outputs_as_ortvaluevector()  # `get_outputs` makes an object for every gradient
        found = [values[index].numpy() for index in range(self._first, self._first + len(self._fetched))]
        results = dict(zip(self._fetched, found, strict=True))
        if self._keep and all(array.dtype.kind in "fiub" for array in found):
            self._kept = results
            for name, array in results.items():
                self.binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        return results
