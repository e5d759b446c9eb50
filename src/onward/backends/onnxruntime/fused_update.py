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
import functools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.row_gradients import RowGradient, add_rows, row_gradient
from onward.backends.onnxruntime.team import Team
from onward.graph import edit, shapes, walk

_BINARY = {"Add": "{0} + {1}", "Sub": "{0} - {1}", "Mul": "{0} * {1}", "Div": "{0} / {1}"}
_COMPARE = {"Greater": ">", "Less": "<", "GreaterOrEqual": ">=", "LessOrEqual": "<="}
_UNARY = {"Neg": "-{0}", "Sqrt": "np.sqrt({0})", "Abs": "abs({0})", "Identity": "{0}"}
_EXACT = {*_BINARY, *_COMPARE, *_UNARY, "Where", "Sign", "Reciprocal"}
_TYPES = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}

CHUNK = 16_384  # elements that a thread takes at once: four arrays of them fit into the cache of a core
SMALLEST_PART = 65_536  # elements that are worth a thread: about the time in which it wakes
FUSE_AFTER = 3.0  # seconds of steps, after which a run is not a short one: compiling takes a second of another thread
ALIGNMENT = 16  # elements; every view starts on a cache line of its flat buffer


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors with the same update expression, which one loop updates.

    `source` is the loop's Python text; `slots[k]` names, per tensor, the k-th array operand; `scalars` the scalar
    operands; `outputs[j]` the states that output j replaces; `target[j]` the slot it is written to.
    """

    source: str
    dtype: str
    slots: tuple[tuple[str, ...], ...]
    scalars: tuple[str, ...]
    constants: tuple[float, ...]
    outputs: tuple[tuple[str, ...], ...]
    targets: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]


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
        self.pulled = self._pull()

    def _pull(self) -> set[ir.Node]:
        """Return the element-wise nodes whose results only reach new state."""
        pulled: set[ir.Node] = set()
        final = {v for v in self.graph.outputs if v.name in self.replaces}
        for node in reversed(list(self.graph)):
            if node.op_type not in _EXACT or node.domain or len(node.outputs) != 1:
                continue
            output = node.outputs[0]
            shape = shapes.static_shape(output)
            if not shape or (output.dtype not in _TYPES and output.dtype != ir.DataType.BOOL):
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
        return any(v.dtype not in _TYPES and not _is_scalar(v) and walk.constant_of(v) is None for v in outside)

    def _fits(self, value: ir.Value | None, shape: tuple[int, ...]) -> bool:
        if value is None:
            return False
        own = shapes.static_shape(value)
        constant = walk.constant_of(value)
        return own in (shape, ()) or (constant is not None and constant.size == 1)

    def groups(self) -> list[Group]:
        merged: dict[tuple[Any, ...], list[_Component]] = {}
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
            shared = any(readers.get(s, 0) > (s in component.arrays) for s in targets)
            if shared:
                self.pulled -= set(component.nodes)
            else:
                merged.setdefault(component.signature, []).append(component)
        return [_merge(group) for group in merged.values()]

    def _components(self) -> list[_Component]:
        """Return the connected components of the element-wise nodes, each in topological order."""
        order = [n for n in self.graph if n in self.pulled]
        parent: dict[ir.Node, ir.Node] = {n: n for n in order}

        def root(node: ir.Node) -> ir.Node:
            while parent[node] is not node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        by_state: dict[str, ir.Node] = {}
        for node in order:
            for value in node.inputs:
                if value is None or _is_scalar(value):
                    continue
                producer = value.producer()
                if producer in parent:
                    parent[root(node)] = root(producer)
                elif value.name in self.state_inputs:
                    first = by_state.setdefault(value.name or "", node)
                    parent[root(node)] = root(first)
            for value in node.outputs:
                if value.name in self.replaces:
                    first = by_state.setdefault(self.replaces[value.name or ""], node)
                    parent[root(node)] = root(first)
        found: dict[ir.Node, list[ir.Node]] = {}
        for node in order:
            found.setdefault(root(node), []).append(node)
        return [_Component(nodes, self.replaces) for nodes in found.values()]

    def plan(self, groups: list[Group]) -> Plan:
        graph = self.graph
        by_name = {v.name: v for n in graph for v in n.outputs}
        by_name.update({v.name: v for v in graph.inputs})
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
        rows = {}
        for name in gradients:
            if by_name[name] not in outputs and all(use.node in self.pulled for use in by_name[name].uses()):
                found = row_gradient(by_name[name])
                if found is not None:
                    rows[name] = found
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


class _Component:
    """Connected element-wise nodes, written as a loop body."""

    def __init__(self, nodes: list[ir.Node], replaces: Mapping[str, str]) -> None:
        self.nodes = nodes
        self.replaces = replaces
        self.arrays: list[str] = []
        self.scalars: list[str] = []
        self.constants: list[float] = []
        self.body: list[str] = []
        self.states: list[str] = []
        self.results: list[str] = []
        self.shapes = {shapes.static_shape(n.outputs[0]) or () for n in nodes}
        types = {n.outputs[0].dtype for n in nodes} - {ir.DataType.BOOL}
        self.dtype = _TYPES.get(next(iter(types))) if len(types) == 1 else None  # type: ignore[arg-type]
        self._names: dict[ir.Value, str] = {}
        for node in nodes:
            self._emit(node)

    @property
    def complete(self) -> bool:
        """Whether all nodes have one shape and one type, some give new state, and no new state comes from outside.

        A moment stays in the graph if the shape of its gradient is unknown; it goes to the state's own memory, from
        which no loop reads.
        """
        whole = len(self.shapes) == 1 and self.dtype is not None and bool(self.states)
        return whole and not any(name in self.replaces for name in self.arrays)

    @property
    def signature(self) -> tuple[Any, ...]:
        targets = tuple(self.arrays.index(s) if s in self.arrays else -1 for s in self.states)
        return (tuple(self.body), self.dtype, tuple(self.scalars), tuple(self.constants), tuple(self.results), targets)

    def _emit(self, node: ir.Node) -> None:
        operands = [self._operand(v) for v in node.inputs if v is not None]
        name = f"t{len(self._names)}"
        output = node.outputs[0]
        self._names[output] = name
        self.body.append(f"{name} = {_expression(node.op_type, operands)}")
        if output.name in self.replaces:
            self.states.append(self.replaces[output.name or ""])
            self.results.append(name)

    def _operand(self, value: ir.Value) -> str:
        if value in self._names:
            return self._names[value]
        constant = walk.constant_of(value)
        if constant is not None and constant.size == 1:
            number = float(constant.reshape(-1)[0])
            if number not in self.constants:
                self.constants.append(number)
            return f"c{self.constants.index(number)}"
        if _is_scalar(value):
            if value.name not in self.scalars:
                self.scalars.append(value.name or "")
            return f"s{self.scalars.index(value.name or '')}"
        if value.name not in self.arrays:
            self.arrays.append(value.name or "")
        return f"v{self.arrays.index(value.name or '')}"


def _is_read_outside(node: ir.Node, pulled: set[ir.Node]) -> bool:
    return any(use.node not in pulled for use in node.outputs[0].uses())


def _is_scalar(value: ir.Value) -> bool:
    shape = shapes.static_shape(value)
    return shape == ()


def _expression(op_type: str, operands: list[str]) -> str:
    if op_type in _BINARY:
        return _BINARY[op_type].format(*operands)
    if op_type in _COMPARE:
        return f"{operands[0]} {_COMPARE[op_type]} {operands[1]}"
    if op_type in _UNARY:
        return _UNARY[op_type].format(*operands)
    if op_type == "Reciprocal":
        return f"one / {operands[0]}"
    if op_type == "Sign":
        return f"(one if {operands[0]} > zero else (-one if {operands[0]} < zero else {operands[0]}))"
    assert op_type == "Where"
    return f"({operands[1]} if {operands[0]} else {operands[2]})"


def _merge(components: list[_Component]) -> Group:
    first = components[0]
    shapes = tuple(min(c.shapes) for c in components)  # each component has one shape
    slots = [tuple(c.arrays[k] for c in components) for k in range(len(first.arrays))]
    targets = []
    outputs = []
    for j, state in enumerate(first.states):
        names = tuple(c.states[j] for c in components)
        outputs.append(names)
        if state in first.arrays:
            targets.append(first.arrays.index(state))
        else:  # a state that is written and not read gets a slot of its own
            slots.append(names)
            targets.append(len(slots) - 1)
    return Group(
        _source(first, len(slots), targets),
        first.dtype or "float32",
        tuple(slots),
        tuple(first.scalars),
        tuple(first.constants),
        tuple(outputs),
        tuple(targets),
        shapes,
    )


def _source(component: _Component, slots: int, targets: list[int]) -> str:
    """Return the loop as Python text; operands are arrays a*, scalars s* and constants c*.

    Each thread calls it with the same `progress`: how many chunks were taken, and how many are done. It returns when
    no chunk is left and `awaited` chunks are done.
    """
    parameters = [f"a{k}" for k in range(slots)]
    parameters += [f"s{k}" for k in range(len(component.scalars))]
    parameters += [f"c{k}" for k in range(len(component.constants))]
    lines = [f"def update({', '.join(['progress', 'awaited', 'one', 'zero', *parameters])}):"]
    lines += ["    while True:", f"        first = count(progress, 0) * {CHUNK}"]
    lines += ["        if first >= a0.shape[0]:", "            break"]
    lines += [f"        p{k} = a{k}[first : first + {CHUNK}]" for k in range(slots)]
    # With a range from 0 to the array's size, the compiler knows that no index is negative, and vectorises.
    lines += ["        for i in range(p0.shape[0]):"]
    lines += [f"            v{k} = p{k}[i]" for k in range(len(component.arrays))]
    lines += [f"            {line}" for line in component.body]
    lines += [f"            p{slot}[i] = {result}" for slot, result in zip(targets, component.results, strict=True)]
    lines += ["        count(progress, 1)", "    while read(progress, 1) < awaited:", "        pass"]
    return "\n".join(lines) + "\n"


@functools.lru_cache(maxsize=64)
def compiled(source: str) -> Callable[..., None]:
    """Return the compiled loop."""
    import numba

    from onward.backends.onnxruntime.team import count, read

    namespace: dict[str, Any] = {"np": np, "count": count, "read": read}
    exec(source, namespace)  # generated above from the structure of a graph, without names or values of a file
    # `Team` starts the threads: OpenMP's would spin on the cores that ONNX Runtime needs.
    function: Callable[..., None] = numba.njit(nogil=True, error_model="numpy")(namespace["update"])
    return function


def compile_ahead(plan: Plan) -> None:
    """Compile the loops of a plan, so that its first update runs at once."""
    for group in plan.groups:
        number = np.dtype(group.dtype).type
        empty = np.zeros(0, group.dtype)
        numbers = [number(0)] * (len(group.scalars) + len(group.constants))
        progress = np.zeros(2, np.int64)
        compiled(group.source)(progress, 0, number(1), number(0), *(empty for _ in group.slots), *numbers)
        if any(row.gradient in names for names in group.slots for row in plan.rows):
            nothing = empty.reshape(0, 0)
            add_rows()(progress, 0, nothing, np.zeros(0, np.int64), nothing, number(0))


def available() -> bool:
    """Return whether numba is installed."""
    import importlib.util

    return importlib.util.find_spec("numba") is not None


class FlatBuffers:
    """One flat array per slot of a group, and the tensors as views into it."""

    def __init__(self, group: Group, threads: int) -> None:
        self.group = group
        self.offsets: list[int] = []
        total = 0
        for shape in group.shapes:
            self.offsets.append(total)
            size = int(np.prod(shape))
            total += -(-size // ALIGNMENT) * ALIGNMENT
        self.size = total
        self.arrays = [np.zeros(total, dtype=group.dtype) for _ in group.slots]
        self._function = compiled(group.source)
        number = np.dtype(group.dtype).type
        self._fixed = [number(1), number(0)]
        self._constants = [number(c) for c in group.constants]
        self._number = number
        self.threads = min(threads, max(1, self.size // SMALLEST_PART))
        self.team = Team(self.threads - 1)

    def views(self) -> Iterable[tuple[str, np.ndarray]]:
        """Yield (tensor name, view) for every tensor of every slot."""
        for names, flat in zip(self.group.slots, self.arrays, strict=True):
            for name, shape, offset in zip(names, self.group.shapes, self.offsets, strict=True):
                yield name, flat[offset : offset + int(np.prod(shape))].reshape(shape)

    def run(self, scalars: Mapping[str, np.ndarray]) -> None:
        """Apply the update to every tensor of the group."""
        values = [self._number(np.asarray(scalars[name]).reshape(())) for name in self.group.scalars]
        chunks = -(-self.size // CHUNK)
        self.team.run(self._function, chunks, (*self._fixed, *self.arrays, *values, *self._constants))


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
