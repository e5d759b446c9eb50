"""Write what the deny-list names with operators that it does not name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.emit import Emitter
from onward.autodiff.problems import Unsupported
from onward.autodiff.sizes import Size
from onward.errors import Diagnostic, ModelError, named_node
from onward.graph import edit, shapes, walk
from onward.graph.builder import Value
from onward.passes.base import NO_GRADIENTS, Fact, Pass, Unit
from onward.passes.core.lowering import replace_node
from onward.passes.core.pooling import max_pool
from onward.passes.core.registry import Lowering
from onward.passes.portable.deny_list import MOST_TENSORS, Denied, denied

M305 = "M305"
_MOST_ROUNDS = 8

NOTHING_DENIED = Fact(
    "nothing that the deny-list names and that can be avoided",
    lambda unit: not _avoidable(unit),
)


class AvoidDenied(Pass):
    """Replace every node that the deny-list names, where other operators compute the same.

    Raises:
        ModelError: lists every node that could not be replaced, with the reason.
    """

    requires = (NO_GRADIENTS,)
    ensures = (NOTHING_DENIED,)

    def run(self, unit: Unit) -> bool:
        changed = False
        for _ in range(_MOST_ROUNDS):  # what replaces a node may be on the list for another reason
            if not _avoidable(unit):
                return changed
            shapes.infer_shapes(unit.model)
            found = {d.node: d for d in reversed(_avoidable(unit))}
            problems = [p for each in found.values() if (p := _rewrite(each, unit)) is not None]
            if problems:
                raise ModelError(problems)
            changed |= bool(found)
            edit.remove_dead_nodes(unit.graph)
        raise AssertionError(f"rewrites do not end: {sorted({d.entry.name for d in _avoidable(unit)})}")


def _avoidable(unit: Unit) -> list[Denied]:
    graphs: list[walk.GraphLike] = [unit.graph, *unit.model.functions.values()]
    return [d for graph in graphs for d in denied(graph) if d.entry.remedy == "rewritten"]


def _rewrite(found: Denied, unit: Unit) -> Diagnostic | None:
    """Replace one node; return what prevents it."""
    node = found.node
    op = Emitter(unit.opset, unit.names, prefix=f"{node.name or node.op_type}/")
    try:
        outputs = _REWRITES[found.entry.name](Lowering(node, op))
    except Unsupported as error:
        return Diagnostic(
            M305,
            f"{found.entry.what} cannot be written with other operators here",
            place=named_node(node),
            found=str(error),
            hint="give the model's inputs shapes (symbols are enough), or compile with profile='default' for "
            "runtimes other than " + ", ".join(found.entry.runtime_names),
        )
    replace_node(node, op, list(outputs))
    return None


def _without_indices(at: Lowering) -> Sequence[Value | None]:
    """Return Y by a MaxPool without Indices, and Indices by the decomposition to core operators."""
    _, indices = max_pool(at)
    attributes = {name: attribute.value for name, attribute in at.node.attributes.items() if name != "storage_order"}
    return [at.op.MaxPool(at.input("X"), **attributes), indices]


def _in_rows(at: Lowering) -> Sequence[Value | None]:
    """Return a Concat of Concats, each with as many inputs as every runtime takes."""
    axis = at.attr("axis")
    parts = at.variadic("inputs")
    while len(parts) > MOST_TENSORS:
        rows = [parts[start : start + MOST_TENSORS] for start in range(0, len(parts), MOST_TENSORS)]
        parts = [at.op.Concat(*row, axis=axis) if len(row) > 1 else row[0] for row in rows]
    return [at.op.Concat(*parts, axis=axis)]


def _by_gather(at: Lowering) -> Sequence[Value | None]:
    """Return a MaxPool as its decomposition to core operators."""
    return [max_pool(at)[0]]


def _group_by_group(at: Lowering) -> Sequence[Value | None]:
    """Return a grouped Conv as one without groups for each group, or as one without a multiplier for each multiple."""
    X, W, bias = at.input("X"), at.input("W"), at.optional_input("B")
    op, group, rank = at.op, int(at.attr("group")), at.rank_of(W) - 2
    given = {name: a.value for name, a in at.node.attributes.items() if name != "group"}
    outputs = at.known_dim(W, 0)
    multiple = outputs // group if outputs is not None and at.known_dim(W, 1) == 1 else group
    if multiple < group:
        kernel = [at.size(W, 2 + axis) for axis in range(rank)]
        every = at.reshape(W, [group, multiple, *kernel])
        parts = []
        for index in range(multiple):
            one = op.Slice(every, [index], [index + 1], [1])
            one.shape = ir.Shape([group, 1, *(k if isinstance(k, int) else None for k in kernel)])
            parts.append(op.Conv(X, one, group=group, **given))
        stacked = op.Concat(*(op.Unsqueeze(part, [2]) for part in parts), axis=2)
        parts[0].shape = at.output("Y").shape  # of which only the spatial sizes are read
        sizes = [at.size(parts[0], 2 + axis) for axis in range(rank)]
        parts[0].shape = None
        Y = at.reshape(stacked, [at.size(X, 0), group * multiple, *sizes])
    else:
        pairs = zip(_parts(at, X, 1, group), _parts(at, W, 0, group), strict=True)
        Y = op.Concat(*(op.Conv(x, w, **given) for x, w in pairs), axis=1)
    if bias is not None:
        Y = op.Add(Y, at.reshape(bias, [-1, *[1] * rank]))
    return [Y]


def _parts(at: Lowering, value: Value, axis: int, parts: int) -> list[Value]:
    """Return equal parts of `value` along an axis."""
    step = at.div(at.size(value, axis), parts)
    made = _cut(at, value, axis, [step] * parts)
    for part in made:
        known = [*(at.dims(value) or [None] * at.rank_of(value))]
        known[axis] = step if isinstance(step, int) else None
        part.shape = ir.Shape(known)
    return made


def _cut(at: Lowering, value: Value, axis: int, sizes: Sequence[Size]) -> list[Value]:
    """Return pieces of `value` along an axis."""
    found, start = [], at.sub(0, 0)
    for size in sizes:
        stop = at.add(start, size)
        found.append(at.op.Slice(value, at.vector([start]), at.vector([stop]), [axis]))
        start = stop
    return found


def _in_slices(at: Lowering) -> Sequence[Value | None]:
    """Return a Split as one Slice for each part."""
    value, count = at.input("input"), len(at.node.outputs)
    axis = at.axis(value)
    known, given = at.constant_input("split"), at.optional_input("split")
    sizes: list[Size]
    if known is not None:
        sizes = [int(size) for size in known]
    elif given is not None:
        sizes = [at.op.Slice(given, [i], [i + 1], [0]) for i in range(count)]
    else:  # equal parts, the last one smaller
        whole = at.size(value, axis)
        step = at.div(at.add(whole, count - 1), count)
        sizes = [step] * (count - 1) + [at.sub(whole, at.mul(step, count - 1))]
    return _cut(at, value, axis, sizes)


def _forwards(at: Lowering) -> Sequence[Value | None]:
    """Return a Slice that goes backwards as a Gather along each axis on which it does, and a Slice along the others."""
    op, data = at.op, at.input("data")
    steps = at.constant_input("steps")
    assert steps is not None
    count = len(steps)
    axes = at.constant_input("axes")
    if axes is None and at.optional_input("axes") is not None:
        raise Unsupported("the axes of the Slice are computed at run time")
    rank = at.rank_of(data)
    places = [int(a) % rank for a in (range(count) if axes is None else axes)]
    bounds = [_entries(at, name, count) for name in ("starts", "ends")]
    out, forwards = data, [i for i in range(count) if steps[i] > 0]
    if forwards:
        starts, ends = (at.vector([bound[i] for i in forwards]) for bound in bounds)
        out = op.Slice(out, starts, ends, [places[i] for i in forwards], [int(steps[i]) for i in forwards])
    for i in set(range(count)) - set(forwards):
        size, step, (start, end) = at.size(data, places[i]), int(steps[i]), (bounds[0][i], bounds[1][i])
        if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
            index = op.constant(np.arange(size, dtype=np.int64)[_python_slice(start, end, step, size)])
        else:
            last = at.sub(size, 1)
            first = at.most(at.least(_from_the_front(at, start, size), last), 0)
            stop = at.most(at.least(_from_the_front(at, end, size), last), -1)
            index = op.Range(at.scalar(first), at.scalar(stop), op.constant(step))
        out = op.Gather(out, index, axis=places[i])
    return [out]


def _entries(at: Lowering, name: str, count: int) -> list[Size]:
    known = at.constant_input(name)
    if known is not None:
        return [int(k) for k in known]
    return [at.op.Slice(at.op.cast(at.input(name), ir.DataType.INT64), [i], [i + 1], [0]) for i in range(count)]


def _from_the_front(at: Lowering, place: Size, size: Size) -> Size:
    if isinstance(place, int):
        return at.add(size, max(place, -(2**62))) if place < 0 else place
    return at.op.Where(at.op.Less(place, 0), at.op.Add(place, at.vector([size])), place)


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """Return a slice with negative step as Python has it; an end before the first element is None."""
    return slice(start, None if end < -size else end, step)


def _with_attributes(at: Lowering) -> Sequence[Value | None]:
    """Return a Conv that says its strides and dilations."""
    rank = at.rank_of(at.input("W")) - 2
    given = {name: a.value for name, a in at.node.attributes.items()}
    written = {"strides": [1] * rank, "dilations": [1] * rank, **given}
    return [at.op.Conv(*at.node.inputs, **written)]


def _with_more_channels(at: Lowering) -> Sequence[Value | None]:
    """Return a Conv whose channels are a multiple of four, by channels of zeros."""
    op, X, W = at.op, at.input("X"), at.input("W")
    rank, channels = at.rank_of(W), at.size(W, 1)
    missing = at.sub(at.mul(at.div(at.add(channels, 3), 4), 4), channels)
    zeros = [0] * (rank - 2)
    pads = at.vector([0, 0, *zeros, 0, missing, *zeros])
    wide = op.Pad(W, pads)
    known = [*(at.dims(W) or [None] * rank)]
    known[1] = at.add(channels, missing) if isinstance(channels, int) else None
    wide.shape = ir.Shape(known)
    rest = {name: a.value for name, a in at.node.attributes.items()}
    return [op.Conv(op.Pad(X, pads), wide, *at.node.inputs[2:], **rest)]


def _by_shape(at: Lowering) -> Sequence[Value | None]:
    """Return a Size as the product of the sizes; by ReduceProd, which fewer runtimes have, if the rank is not known."""
    data = at.input("data")
    if at.rank(data) is None:
        return [at.op.ReduceProd(at.op.Shape(data), keepdims=0)]
    return [at.scalar(at.mul(1, *at.sizes(data)))]


_REWRITES: dict[str, Callable[[Lowering], Sequence[Value | None]]] = {
    "max-pool-indices": _without_indices,
    "grouped-conv": _group_by_group,
    "conv-channels": _with_more_channels,
    "bare-conv": _with_attributes,
    "dilated-max-pool": _by_gather,
    "wide-concat": _in_rows,
    "wide-split": _in_slices,
    "reversed-slice": _forwards,
    "size": _by_shape,
}
