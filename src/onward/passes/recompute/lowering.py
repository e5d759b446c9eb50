"""`RecomputeForward`: let the backward pass read copies of forward nodes, so that their results need not be kept.

A copy of a node reads what is kept through a `Reshape` to the shape that it has. That moves nothing and changes no
number, but makes the copy a different node for tools that merge equal ones: ONNX Runtime merges them at every level of
optimization but 0, and removes `Identity`. A compiler that also removes such a Reshape, as XLA does, merges the copies
with the originals: the numbers are the same, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import NO_GRADIENTS, Pass, Unit
from onward.passes.recompute.choice import Choice, choose, nothing
from onward.passes.recompute.costs import sized_shapes
from onward.passes.recompute.settings import ASSUMED, PREFIX, Estimate, Recompute
from onward.passes.recompute.tape import Tape, reads_copy


class RecomputeForward(Pass):
    """Copy forward nodes for the backward pass; the last pass that changes nodes, as another would merge the copies."""

    requires = (NO_GRADIENTS,)

    def __init__(
        self, wanted: Recompute, report: Callable[[str, Estimate], None] = lambda name, estimate: None
    ) -> None:
        self._wanted = wanted
        self._report = report

    def run(self, unit: Unit) -> bool:
        sizes = dict(self._wanted.sizes)
        if self._wanted.budget is not None:
            _require_sizes(unit, sizes)
        forward, backward = split_passes(unit)
        tape = Tape(unit.graph, sized_shapes(unit.model, sizes, ASSUMED), forward, backward)
        before = nothing(tape)
        chosen = choose(tape, self._wanted, f"the {unit.name} graph")
        _copy(unit, tape, chosen)
        share = chosen.extra / (sum(tape.cost) or 1.0)
        self._report(unit.name, Estimate(len(chosen.nodes), before.bytes, chosen.bytes, share))
        return bool(chosen.nodes)


def split_passes(unit: Unit) -> tuple[set[ir.Node], set[ir.Node]]:
    """Return the nodes that the loss needs, and those that only its gradients need."""
    values = unit.values()
    pairs = [pair for pair in unit.gradients.values() if pair is not None]
    losses = {y for y, _ in pairs} | ({unit.roles.loss} if unit.roles is not None else set())
    forward = walk.ancestors([values[name] for name in losses if name in values])
    backward = walk.ancestors([values[name] for name in unit.gradients if name in values])
    return forward, backward - forward


def _require_sizes(unit: Unit, sizes: dict[str, int]) -> None:
    named = [d for v in unit.data for d in shapes.dims(v) or () if isinstance(d, str)]
    free = list(dict.fromkeys(d for d in named if d not in sizes))
    if free:
        shown = ", ".join(f"`{size}`" for size in free)
        example = ", ".join(f"{size!r}: {ASSUMED}" for size in free)
        raise ArgumentError(
            Diagnostic(
                A101,
                "a budget of memory needs the sizes of the batch",
                place="recompute=",
                found=f"free sizes: {shown}",
                needed=f"a number for each, such as sizes={{{example}}}",
            )
        )


def _copy(unit: Unit, tape: Tape, chosen: Choice) -> None:
    """Insert the copies, each before the first node that needs it, and let the backward pass read them."""
    copied: dict[Value, Value] = {}  # value -> its copy
    apart: dict[Value, Value] = {}  # value -> the same as a result of Reshape
    copies = chosen.copies
    for index in sorted(copies.before, key=lambda node: (copies.before[node], node)):
        op = Builder(unit.opset, unit.names, prefix=PREFIX)
        node, anchor = tape.nodes[index], tape.nodes[copies.before[index]]
        read = {v for v in node.inputs if v is not None}
        given = {v: copied[v] for v in read if _reads(tape, chosen, index, v, is_copy=True)}
        if not given:
            _set_apart(tape, op, read, apart)
            given = {v: apart[v] for v in read if v in apart}
        (twin,) = edit.copy_nodes([node], dict(given), names=unit.names, prefix=PREFIX)
        copied.update(zip(node.outputs, twin.outputs, strict=True))
        unit.graph.insert_before(anchor, [*op.nodes, twin])
    for index, node in enumerate(tape.nodes):
        for position, value in enumerate(node.inputs):
            if value in copied and _reads(tape, chosen, index, value, is_copy=False):
                node.replace_input_with(position, copied[value])


def _reads(tape: Tape, chosen: Choice, index: int, value: Value, *, is_copy: bool) -> bool:
    return reads_copy(tape, chosen.copies, chosen.dropped, index, tape.number[value], is_copy=is_copy)


def _set_apart(tape: Tape, op: Builder, read: set[Value], apart: dict[Value, Value]) -> None:
    """Add a Reshape for the largest of the values that a first copy reads."""
    if not read.isdisjoint(apart):
        return
    ranked = [v for v in read if v.shape is not None]
    computed = [v for v in ranked if (maker := v.producer()) is None or maker.op_type != "Constant"]
    largest = max(computed or ranked, key=lambda v: (tape.size[tape.number[v]], v.name or ""), default=None)
    if largest is not None and largest.shape is not None:
        # 0 stands for the size that is there
        apart[largest] = op.Reshape(largest, op.constant([0] * len(largest.shape), ir.DataType.INT64))
        apart[largest].type, apart[largest].shape = largest.type, largest.shape.copy()
