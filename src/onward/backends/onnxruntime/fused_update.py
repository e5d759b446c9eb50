"""Run the optimizer's update as one loop over flat buffers, generated from its graph and compiled by numba.

Stock ONNX Runtime runs the dozen element-wise operators of an optimizer as a dozen passes over the parameters. Here the
element-wise end of the step graph, from the gradients to the new state, becomes one compiled scalar expression per
element. Parameters, moments and gradients are views into flat buffers, one per slot of the expression. So one loop
updates all parameters in place, after the graph has finished. The loop contains only operators that IEEE 754 rounds
exactly, without re-association, so the results are bit-identical to those of the plain graph. A session may therefore
begin with the plain graph and go over to the loop once it is compiled, which takes a second.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.row_gradients import RowBuffer, RowGradient, row_gradient, row_loops
from onward.backends.onnxruntime.team import Team
from onward.backends.onnxruntime.update_loop import CHUNK, EXACT, TYPES, Component, Group, compiled, is_scalar, merge
from onward.graph import edit, shapes, walk

SMALLEST_PART = 65_536  # elements that are worth a thread: about the time in which it wakes
FUSE_AFTER = 3.0  # seconds of steps, after which a run is not a short one: compiling takes a second of another thread
ALIGNMENT = 16  # elements; every view starts on a cache line of its flat buffer


@dataclasses.dataclass(frozen=True)
class Plan:
    """The step graph without its update, and the loops that finish it."""

    model: ir.Model
    groups: tuple[Group, ...]
    states: frozenset[str]  # the states the loops replace
    gradients: Mapping[str, tuple[int, ...]]  # outputs of the reduced graph that feed the loops: name -> shape
    scalars: tuple[str, ...]  # further scalar outputs of the reduced graph that the loops need
    rows: tuple[RowGradient, ...]  # gradients of which only some rows are outputs


def plan_update(model: ir.Model, replaces: Mapping[str, str], shared: Collection[str] = ()) -> Plan | None:
    """Split the step graph, in place, and return the plan.

    Return None, with the graph unchanged, if it has no element-wise update, or if the loop would replace a state in
    `shared`.
    """
    finder = _Finder(model, replaces)
    groups = finder.groups()
    if not groups or any(s in shared for g in groups for names in g.outputs for s in names):
        return None
    return finder.plan(groups)


class _Finder:
    def __init__(self, model: ir.Model, replaces: Mapping[str, str]) -> None:
        self.model = model
        self.graph = model.graph
        self.replaces = replaces
        self.state_inputs = {v.name: v for v in self.graph.inputs if v.name in set(replaces.values())}
        self.by_name = {v.name or "": v for v in self.graph.inputs}
        self.by_name.update({v.name or "": v for n in self.graph for v in n.outputs})
        self.rows: dict[str, RowGradient] = {}
        self.pulled = self._pull()

    def _pull(self) -> set[ir.Node]:
        """Return the element-wise nodes whose results only reach new state."""
        pulled: set[ir.Node] = set()
        final = {v for v in self.graph.outputs if v.name in self.replaces}
        for node in reversed(list(self.graph)):
            if node.op_type not in EXACT or node.domain or len(node.outputs) != 1:
                continue
            output = node.outputs[0]
            shape = shapes.static_shape(output)
            if not shape or (output.dtype not in TYPES and output.dtype != ir.DataType.BOOL):
                continue
            if output.is_graph_output() and output not in final:
                continue
            if not output.is_graph_output() and not output.uses():
                continue
            if any(use.node not in pulled for use in output.uses()):
                continue
            if all(self._fits(v, shape) for v in node.inputs):
                pulled.add(node)
        while stay := {n for n in pulled if self._reads_booleans(n, pulled) or _is_read_outside(n, pulled)}:
            pulled -= stay
        return pulled

    def _reads_booleans(self, node: ir.Node, pulled: set[ir.Node]) -> bool:
        """Return whether the node reads an array of another node that is no array of floating-point numbers.

        Such are the only ones that come into a loop: a comparison is pulled with what reads it, or both stay.
        """
        outside = [v for v in node.inputs if v is not None and v.producer() not in pulled]
        return any(v.dtype not in TYPES and not is_scalar(v) and walk.constant_of(v) is None for v in outside)

    def _fits(self, value: ir.Value | None, shape: tuple[int, ...]) -> bool:
        if value is None:
            return False
        own = shapes.static_shape(value)
        constant = walk.constant_of(value)
        if constant is not None and constant.size == 1:
            return True
        return own in (shape, ()) and value.name in self.by_name  # the arrays of a loop are computed, or inputs

    def groups(self) -> list[Group]:
        merged: dict[tuple[Any, ...], list[Component]] = {}
        readers: dict[str, int] = {}
        found = self._components()
        components = [c for c in found if c.complete]
        for component in found:
            if not component.complete:
                self.pulled -= set(component.nodes)
        for component in components:
            for name in component.arrays:
                readers[name] = readers.get(name, 0) + 1
        for component in components:
            targets = component.states
            if any(readers.get(s, 0) > (s in component.arrays) for s in targets):  # another component reads it too
                self.pulled -= set(component.nodes)
        for component in components:
            if self.pulled.issuperset(component.nodes):
                by_rows = self._find_rows(component)
                merged.setdefault((component.signature, by_rows), []).append(component)
        return [merge(group, self.rows) for group in merged.values()]

    def _find_rows(self, component: Component) -> tuple[str, ...]:
        """Return the gradients of a component of which some rows are enough, and remember how they are computed."""
        names = []
        for name in component.arrays:
            value = self.by_name[name]
            if value.is_graph_output() or any(use.node not in self.pulled for use in value.uses()):
                continue
            if (found := row_gradient(value)) is not None:
                self.rows[name] = found
                names.append(name)
        return tuple(names)

    def _components(self) -> list[Component]:
        """Return the connected components of the element-wise nodes, each in topological order.

        Nodes that read the same array are connected, so that each array is one slot of one component.
        """
        order = [n for n in self.graph if n in self.pulled]
        parent: dict[ir.Node, ir.Node] = {n: n for n in order}

        def root(node: ir.Node) -> ir.Node:
            while parent[node] is not node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        by_array: dict[str, ir.Node] = {}
        for node in order:
            for value in node.inputs:
                if value is None or is_scalar(value):
                    continue
                producer = value.producer()
                if producer in parent:
                    parent[root(node)] = root(producer)
                elif (constant := walk.constant_of(value)) is None or constant.size != 1:
                    first = by_array.setdefault(value.name or "", node)
                    parent[root(node)] = root(first)
            for value in node.outputs:
                if value.name in self.replaces:
                    first = by_array.setdefault(self.replaces[value.name or ""], node)
                    parent[root(node)] = root(first)
        found: dict[ir.Node, list[ir.Node]] = {}
        for node in order:
            found.setdefault(root(node), []).append(node)
        return [Component(nodes, self.replaces) for nodes in found.values()]

    def plan(self, groups: list[Group]) -> Plan:
        graph, by_name, rows = self.graph, self.by_name, self.rows
        states = frozenset(s for g in groups for names in g.outputs for s in names)
        gradients: dict[str, tuple[int, ...]] = {}
        scalars: dict[str, None] = {}
        for group in groups:
            for names in group.slots:
                for name, shape in zip(names, group.shapes, strict=True):
                    if name not in self.state_inputs:
                        gradients[name] = shape
            scalars.update(dict.fromkeys(group.scalars))
        kept = [o for o in graph.outputs if self.replaces.get(o.name or "") not in states]
        outputs = set(kept)
        graph.outputs.clear()
        graph.outputs.extend(kept)
        inputs_needed = {n for n in [*gradients, *scalars] if by_name[n].producer() is None}
        wanted = [n for n in [*gradients, *scalars] if n not in rows and n not in inputs_needed]
        wanted += [n for found in rows.values() for n in (found.indices, found.rows)]
        graph.outputs.extend([by_name[n] for n in dict.fromkeys(wanted) if by_name[n] not in outputs])
        for node in [n for n in graph if n in self.pulled]:
            assert all(self.replaces.get(v.name or "", "") in states or not v.is_graph_output() for v in node.outputs)
        edit.remove_dead_nodes(graph)
        read = [v for v in graph.inputs if v.name not in states or v.uses()]
        graph.inputs.clear()  # and not one by one: each time, the list is searched for the one that goes
        graph.inputs.extend(read)
        return Plan(
            self.model,
            tuple(groups),
            states,
            {n: s for n, s in gradients.items() if n not in inputs_needed and n not in rows},
            tuple(n for n in scalars if n not in inputs_needed),
            tuple(rows.values()),
        )


def _is_read_outside(node: ir.Node, pulled: set[ir.Node]) -> bool:
    return any(use.node not in pulled for use in node.outputs[0].uses())


def compile_ahead(plan: Plan) -> None:
    """Compile the loops of a plan, so that its first update runs at once."""
    for group in plan.groups:
        number = np.dtype(group.dtype).type
        empty = np.zeros(0, group.dtype)
        numbers = [number(0)] * (len(group.scalars) + len(group.constants))
        progress = np.zeros(2, np.int64)
        table: tuple[Any, ...] = ()
        if group.by_rows:
            place, add = row_loops()
            places, nothing, sums = np.zeros(0, np.int32), np.zeros(0, np.int64), empty.reshape(0, 0)
            place(nothing, places, places)
            add(progress, 0, sums, places, sums, number(0))
            table = (empty, 0, 0, 0, *(places, sums) * len(group.by_rows))
        arrays = (empty for k in range(len(group.slots)) if k not in group.by_rows)
        compiled(group.source)(progress, 0, number(1), number(0), *table, *arrays, *numbers)


def available() -> bool:
    """Return whether numba is installed."""
    import importlib.util

    return importlib.util.find_spec("numba") is not None


class FlatBuffers:
    """One flat array per slot of a group, and the tensors as views into it."""

    def __init__(self, group: Group, rows: Mapping[str, RowGradient], threads: int) -> None:
        self.group = group
        self.offsets: list[int] = []
        total = 0
        for shape in group.shapes:
            self.offsets.append(total)
            size = int(np.prod(shape))
            total += -(-size // ALIGNMENT) * ALIGNMENT
        self.threads = min(threads, max(1, total // SMALLEST_PART))
        self.team = Team(self.threads - 1)
        self.arrays = {k: np.zeros(total, group.dtype) for k in range(len(group.slots)) if k not in group.by_rows}
        self._function = compiled(group.source)
        self._number = np.dtype(group.dtype).type
        self._constants = [self._number(c) for c in group.constants]
        self._chunks = -(-total // CHUNK)
        self.rows: list[RowBuffer] = []
        self._table: tuple[Any, ...] = ()
        if group.by_rows:
            count, width = group.shapes[0]
            for k in group.by_rows:
                self.rows.append(RowBuffer(rows[group.slots[k][0]], (count, width), group.dtype, self.team))
            at_once = max(1, CHUNK // max(1, width))
            self._table = (np.zeros(at_once * width, group.dtype), width, count, at_once)
            self._chunks = -(-count // at_once)

    def views(self) -> Iterable[tuple[str, np.ndarray]]:
        """Yield (tensor name, view) for every tensor of every slot but that of a gradient of rows."""
        for k, flat in self.arrays.items():
            for name, shape, offset in zip(self.group.slots[k], self.group.shapes, self.offsets, strict=True):
                yield name, flat[offset : offset + int(np.prod(shape))].reshape(shape)

    def run(self, scalars: Mapping[str, np.ndarray]) -> None:
        """Apply the update to every tensor of the group."""
        values = [self._number(np.asarray(scalars[name]).reshape(())) for name in self.group.scalars]
        rows = [array for buffer in self.rows for array in (buffer.places, buffer.sums)]
        arguments = (
            self._number(1),
            self._number(0),
            *self._table,
            *rows,
            *self.arrays.values(),
            *values,
            *self._constants,
        )
        self.team.run(self._function, self._chunks, arguments)


class Later:
    """The fused update of a run that began with the plain graph: compiled in a thread once the run is no short one."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._seconds = 0.0
        self._thread: threading.Thread | None = None

    def is_ready(self, seconds: float, compile_ahead: Callable[[], None]) -> bool:
        """Count the seconds of one more step; return whether the loops are compiled, or cannot be."""
        self._seconds += seconds
        if self._thread is None:
            if self._seconds >= FUSE_AFTER:
                self._thread = threading.Thread(target=self._run, args=(compile_ahead,), name="onward-compile")
                self._thread.start()
            return False
        return not self._thread.is_alive()

    def _run(self, compile_ahead: Callable[[], None]) -> None:
        try:
            compile_ahead()
        except Exception as error:  # noqa: BLE001 - numba and LLVM raise what they like; the session says it
            self.failure = error
