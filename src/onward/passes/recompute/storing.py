"""`StoreResiduals`: keep what the backward pass reads of the forward pass in 16 bits, and widen it where it is read.

    h = Cast(X)                 to float16 or bfloat16, in the forward pass
    X' = Reshape(X, Shape(h))   what the last reader of X in the forward pass reads: the same memory, but h comes first
    W = Cast(h)                 to float32, what the backward pass reads

The forward pass computes with X, so the loss is that of float32. Without X', a runtime may make h when the backward
pass asks for it, and would keep X until then. These values stay as they are:

- integers, masks, double precision, and what is small beside all that is kept;
- inputs, weights, constants and outputs of the step, which stay in memory anyway;
- what the backward pass reads soon after the forward pass, so that nothing would be saved in between;
- what bodies and recurrent layers read, as in `choice.fixed`;
- what the backward pass compares with another value or rounds to whole numbers: the gradient of a maximum goes to all
  numbers that are equal to it, and of 16 bits more numbers are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from onward.graph import edit, walk
from onward.graph.builder import Builder, Value
from onward.graph.order import backwards, by_depth
from onward.passes.base import NO_GRADIENTS, Pass, Unit
from onward.passes.recompute.choice import fixed, nothing
from onward.passes.recompute.costs import sized_shapes
from onward.passes.recompute.lowering import split_passes
from onward.passes.recompute.settings import ASSUMED, Store, Stored
from onward.passes.recompute.tape import Tape

NARROW = "stored/"
WIDE = "widened/"
_TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
_APART = 4  # times its size must be made between two uses of a value, so that it pays to have it in 16 bits meanwhile
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_STEPS = frozenset({"ArgMax", "ArgMin", "Ceil", "Floor", "Mod", "Round", "TopK"})
_SELECTIONS = frozenset(  # whose result has the numbers of what they read
    {
        "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Max", "MaxPool", "Min",
        "Pad", "ReduceMax", "ReduceMin", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip


class StoreResiduals(Pass):
    """Narrow large float32 values that wait for the backward pass; behind `RecomputeForward`, which says which wait."""

    requires = (NO_GRADIENTS,)

    def __init__(self, wanted: Store, report: Callable[[str, Stored], None] = lambda name, stored: None) -> None:
        self._wanted = wanted
        self._report = report

    def run(self, unit: Unit) -> bool:
        tape = self._tape(unit)
        chosen = _choose(tape)
        inputs = {node: tuple(node.inputs) for node in tape.nodes}
        for root, groups in chosen.items():
            _store(unit, tape, root, groups, _TYPES[self._wanted.dtype])
        before = nothing(tape).bytes
        after = nothing(self._tape(unit)).bytes if chosen else before
        if after >= before:  # the most is in use where nothing waits: leave the gradients exact
            _undo(unit, inputs)
            chosen, after = {}, before
        edit.remove_dead_nodes(unit.graph, [n for n in tape.nodes if n.op_type == "Size"])
        self._report(unit.name, Stored(len(chosen), sum(tape.size[r] for r in chosen), before, after))
        return bool(chosen)

    def _tape(self, unit: Unit) -> Tape:
        forward, backward = split_passes(unit)
        return Tape(unit.graph, sized_shapes(unit.model, dict(self._wanted.sizes), ASSUMED), forward, backward)


def _undo(unit: Unit, inputs: Mapping[ir.Node, tuple[Value | None, ...]]) -> None:
    """Give the nodes the inputs that they had, and remove all other nodes."""
    for node, values in inputs.items():
        for position, value in enumerate(values):
            node.replace_input_with(position, value)
    edit.remove_dead_nodes(unit.graph, [node for node in unit.graph if node not in inputs])


def _choose(tape: Tape) -> dict[int, list[list[int]]]:
    """Return the roots to store, each with the nodes of the backward pass that read it, in groups near each other."""
    producer = {v: i for i, made in enumerate(tape.makes) for v in made}
    makers = [[producer[v] for v in (*r, *c) if v in producer] for r, c in zip(tape.reads, tape.captured, strict=True)]
    order = backwards(makers, by_depth(makers))
    place = {node: position for position, node in enumerate(order)}
    made = list(itertools.accumulate(tape.made_size(node) for node in order))
    readers: dict[int, list[int]] = {}
    for index in order:
        if tape.nodes[index].op_type not in ("Shape", "Size"):
            for root in {tape.root[v] for v in tape.reads[index]} & tape.residuals:
                readers.setdefault(root, []).append(index)
    stays = fixed(tape) | _exact(tape)
    found: dict[int, list[list[int]]] = {}
    for root in sorted(tape.residuals - stays):
        direct = [i for i in readers[root] if tape.forward[i] and root in tape.reads[i]]
        if tape.values[root].dtype != ir.DataType.FLOAT or not direct:
            continue
        if max(direct) > min(i for i in readers[root] if tape.backward[i]):
            continue
        before = max(place[i] for i in readers[root] if not tape.backward[i])
        groups: list[list[int]] = []
        for reader in (i for i in readers[root] if tape.backward[i]):
            if made[place[reader] - 1] - made[before] >= _APART * tape.size[root]:
                groups.append([])
            if not groups:
                break  # what is read at once needs the float32 anyway
            groups[-1].append(reader)
            before = place[reader]
        if groups:
            found[root] = groups
    return found


def _exact(tape: Tape) -> set[int]:
    """Return the roots whose numbers the backward pass compares with others, or rounds."""
    found: set[int] = set()
    for index, node in enumerate(tape.nodes):
        if tape.backward[index] and _needs_all_digits(node):
            queue, seen = list(tape.reads[index]), set[int]()
            while queue:
                value = queue.pop()
                maker = tape.maker[value]
                if maker < 0 or value in seen:
                    continue
                seen.add(value)
                found.add(tape.root[value])
                if tape.backward[maker] and tape.nodes[maker].op_type in _SELECTIONS:
                    queue += tape.reads[maker]
    return found


def _needs_all_digits(node: ir.Node) -> bool:
    if node.op_type == "Cast":
        to = node.outputs[0].dtype
        return to is not None and not to.is_floating_point()
    compared = node.op_type in _COMPARISONS and all(walk.constant_of(v) is None for v in node.inputs)
    return compared or node.op_type in _STEPS


def _store(unit: Unit, tape: Tape, root: int, groups: list[list[int]], dtype: ir.DataType) -> None:
    """Add the nodes for one value, and let its readers in the backward pass read what is widened."""
    X = tape.values[root]
    narrow = Builder(unit.opset, unit.names, prefix=NARROW)
    h = _like(X, narrow.Cast(X, to=dtype, name=f"{X.name}"))
    tied = _like(X, narrow.Reshape(X, narrow.Shape(h)))
    last = max(i for i, node in enumerate(tape.nodes) if tape.forward[i] and root in tape.reads[i])
    _replace(tape.nodes[last], {X: tied})
    unit.graph.insert_before(tape.nodes[last], narrow.nodes)
    _read_sizes_of(unit, tape, root, h)
    for number, group in enumerate(groups):
        op = Builder(unit.opset, unit.names, prefix=WIDE)
        kept = h
        if number:  # the same Cast twice would be merged, and its result kept from the first reader to the last
            assert h.shape is not None
            kept = _like(h, op.Reshape(h, op.constant([0] * len(h.shape), ir.DataType.INT64)))
        wide = {X: _like(X, op.Cast(kept, to=ir.DataType.FLOAT, name=f"{X.name}"))}
        for reader in group:
            views = (tape.values[v] for v in tape.reads[reader] if tape.root[v] == root and tape.forward[tape.maker[v]])
            for view in views:
                _add_view(unit, op, view, wide)
        unit.graph.insert_before(tape.nodes[_anchor(tape, group, last)], op.nodes)
        for reader in group:
            _replace(tape.nodes[reader], wide)


def _read_sizes_of(unit: Unit, tape: Tape, root: int, h: Value) -> None:
    """Let the nodes behind the forward pass that read only the sizes of a value read those of the narrow one.

    A runtime keeps a value until its Shape is computed. ONNX Runtime has no Size of 16 bits.
    """
    for index, node in enumerate(tape.nodes):
        if node.op_type in ("Shape", "Size") and not tape.forward[index] and tape.root[tape.reads[index][0]] == root:
            op = Builder(unit.opset, unit.names, prefix=NARROW)
            view, narrow = tape.values[tape.reads[index][0]], {tape.values[root]: h}
            _add_view(unit, op, view, narrow)
            if node.op_type == "Shape":
                _replace(node, {view: narrow[view]})
            else:
                count = op.ReduceProd(op.Shape(narrow[view]), keepdims=0)
                count.type, count.shape = node.outputs[0].type, ir.Shape([])
                edit.replace_uses({node.outputs[0]: count})
            unit.graph.insert_before(node, op.nodes)


def _anchor(tape: Tape, group: Iterable[int], last: int) -> int:
    """Return the node before which values are widened: in the file before all else that the first reader waits for.

    `last` is the last reader of the forward pass, behind which it must be.
    From a node, ONNX Runtime goes back to what it reads, the last of the file first (`graph.order.backwards`).
    """
    first = min(group)
    waits = [tape.maker[v] for v in tape.reads[first] if tape.maker[v] > last and tape.backward[tape.maker[v]]]
    return max(waits, default=first)


def _add_view(unit: Unit, op: Builder, view: Value, wide: dict[Value, Value]) -> None:
    """Add copies of the nodes that make a view of a stored value, such as Reshape, to those of the builder."""
    if view in wide:
        return
    node = view.producer()
    assert node is not None
    assert node.inputs[0] is not None
    _add_view(unit, op, node.inputs[0], wide)
    (twin,) = edit.copy_nodes([node], {node.inputs[0]: wide[node.inputs[0]]}, names=unit.names, prefix=WIDE)
    twin.outputs[0].type = wide[node.inputs[0]].type
    op.nodes.append(twin)
    wide[view] = twin.outputs[0]


def _replace(node: ir.Node, replaced: dict[Value, Value]) -> None:
    for position, value in enumerate(node.inputs):
        if value in replaced:
            node.replace_input_with(position, replaced[value])


def _like(value: Value, made: Value) -> Value:
    """Give a value the shape of another."""
    assert value.shape is not None
    made.shape = value.shape.copy()
    return made
