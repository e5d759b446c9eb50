"""The loop of a fused update: connected element-wise nodes as Python text, which numba compiles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph import shapes, walk

_BINARY = {"Add": "{0} + {1}", "Sub": "{0} - {1}", "Mul": "{0} * {1}", "Div": "{0} / {1}"}
_COMPARE = {"Greater": ">", "Less": "<", "GreaterOrEqual": ">=", "LessOrEqual": "<="}
_UNARY = {"Neg": "-{0}", "Sqrt": "np.sqrt({0})", "Abs": "abs({0})", "Identity": "{0}"}
EXACT = {*_BINARY, *_COMPARE, *_UNARY, "Where", "Sign", "Reciprocal", "Sum"}
TYPES = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}

CHUNK = 16_384  # elements that a thread takes at once: four arrays of them fit into the cache of a core


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors with the same update expression, which one loop updates.

    `source` is the loop's Python text; `slots[k]` names, per tensor, the k-th array operand; `scalars` the scalar
    operands; `outputs[j]` the states that output j replaces; `target[j]` the slot it is written to. `by_rows` are the
    slots of gradients of which there are only some rows, one for each place where a table is read: a table with such
    gradients is a group of its own.
    """

    source: str
    dtype: str
    slots: tuple[tuple[str, ...], ...]
    scalars: tuple[str, ...]
    constants: tuple[float, ...]
    outputs: tuple[tuple[str, ...], ...]
    targets: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    by_rows: tuple[int, ...] = ()


class Component:
    """Connected element-wise nodes, written as a loop body."""

    def __init__(self, nodes: list[ir.Node], replaces: Mapping[str, str]) -> None:
        self.nodes = nodes
        self.replaces = replaces
        self.arrays: list[str] = []
        self.scalars: list[str] = []
        self.constants: dict[str, float] = {}  # by their bits: 0 and -0 are equal
        self.body: list[str] = []
        self.states: list[str] = []
        self.results: list[str] = []
        self.shapes = {shapes.static_shape(n.outputs[0]) or () for n in nodes}
        types = {n.outputs[0].dtype for n in nodes} - {ir.DataType.BOOL}
        self.dtype = TYPES.get(next(iter(types))) if len(types) == 1 else None  # type: ignore[arg-type]
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
            self.constants.setdefault(number.hex(), number)
            return f"c{list(self.constants).index(number.hex())}"
        if is_scalar(value):
            if value.name not in self.scalars:
                self.scalars.append(value.name or "")
            return f"s{self.scalars.index(value.name or '')}"
        if value.name not in self.arrays:
            self.arrays.append(value.name or "")
        return f"v{self.arrays.index(value.name or '')}"


def is_scalar(value: ir.Value) -> bool:
    shape = shapes.static_shape(value)
    return shape == ()


def _expression(op_type: str, operands: list[str]) -> str:
    if op_type in _BINARY:
        return _BINARY[op_type].format(*operands)
    if op_type in _COMPARE:
        return f"{operands[0]} {_COMPARE[op_type]} {operands[1]}"
    if op_type in _UNARY:
        return _UNARY[op_type].format(*operands)
    if op_type == "Sum":
        return " + ".join(operands)  # from left to right, as ONNX Runtime adds them
    if op_type == "Reciprocal":
        return f"one / {operands[0]}"
    if op_type == "Sign":
        return f"(one if {operands[0]} > zero else (-one if {operands[0]} < zero else {operands[0]}))"
    assert op_type == "Where"
    return f"({operands[1]} if {operands[0]} else {operands[2]})"


def merge(components: list[Component], rows: Collection[str]) -> Group:
    first = components[0]
    assert len(components) == 1 or not any(name in rows for name in first.arrays)  # the rows are of one table
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
    by_rows = tuple(k for k, name in enumerate(first.arrays) if name in rows)
    return Group(
        _source(first, len(slots), targets, by_rows),
        first.dtype or "float32",
        tuple(slots),
        tuple(first.scalars),
        tuple(first.constants.values()),
        tuple(outputs),
        tuple(targets),
        shapes,
        by_rows,
    )


_BY_CHUNKS = """
def update(progress, awaited, one, zero, {parameters}):
    while True:
        first = count(progress, 0) * {chunk}
        if first >= a0.shape[0]:
            break
        last = first + {chunk}
        {slices}
        for i in range(p0.shape[0]):
            {body}
        count(progress, 1)
    while read(progress, 1) < awaited:
        pass
"""

# Of an embedding's gradient there are only the rows that are no zeros, in `sums`; `places` says where. All others are
# read from `blank`, and so from the cache. A table that is read in several places has several such gradients.
_BY_ROWS = """
def update(progress, awaited, one, zero, blank, width, rows, rows_at_once, {tables}, {parameters}):
    while True:
        row = count(progress, 0) * rows_at_once
        if row >= rows:
            break
        end = min(row + rows_at_once, rows)
        while row < end:
            next_row = row + 1
            if {is_blank}:
                while next_row < end and {next_is_blank}:
                    next_row += 1
            first, last = row * width, next_row * width
            {slices}
            for i in range(p0.shape[0]):
                {body}
            row = next_row
        count(progress, 1)
    while read(progress, 1) < awaited:
        pass
"""


def _source(component: Component, slots: int, targets: list[int], by_rows: tuple[int, ...]) -> str:
    """Return the loop as Python text; operands are arrays a*, scalars s* and constants c*.

    Each thread calls it with the same `progress`: how many chunks were taken, and how many are done. It returns when
    no chunk is left and `awaited` chunks are done.
    """
    arrays = [k for k in range(slots) if k not in by_rows]
    parameters = [f"a{k}" for k in arrays]
    parameters += [f"s{k}" for k in range(len(component.scalars))]
    parameters += [f"c{k}" for k in range(len(component.constants))]
    slices = [f"p{k} = a{k}[first:last]" for k in arrays]
    slices += [f"p{k} = blank[: last - first] if places{k}[row] < 0 else sums{k}[places{k}[row]]" for k in by_rows]
    # With a range from 0 to the array's size, the compiler knows that no index is negative, and vectorises.
    body = [f"v{k} = p{k}[i]" for k in range(len(component.arrays))] + component.body
    body += [f"p{slot}[i] = {result}" for slot, result in zip(targets, component.results, strict=True)]
    template, indent = (_BY_ROWS, 12) if by_rows else (_BY_CHUNKS, 8)
    return template.format(
        parameters=", ".join(parameters),
        chunk=CHUNK,
        tables=", ".join(f"places{k}, sums{k}" for k in by_rows),
        is_blank=" and ".join(f"places{k}[row] < 0" for k in by_rows),
        next_is_blank=" and ".join(f"places{k}[next_row] < 0" for k in by_rows),
        slices=("\n" + " " * indent).join(slices),
        body=("\n" + " " * (indent + 4)).join(body),
    )


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
