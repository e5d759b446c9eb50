"""Write out the pads of every axis; join what was padded only to be added."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import NO_GRADIENTS, Pass, Unit


class PadEveryAxis(Pass):
    """Replace the `axes` of each Pad by zeros in `pads` for the other axes, where the rank is known.

    ONNX Runtime (1.31) moves a Transpose through a Pad as if `axes` were absent: the session then fails, or pads the
    wrong axes. Backward passes are full of such pairs. Programs also run without our backend, so they contain the pads.
    """

    def run(self, unit: Unit) -> bool:
        found = [n for n in walk.all_nodes(unit.graph) if _has_axes(n)]
        if any(_rank(n) is None for n in found):
            shapes.infer_shapes(unit.model)
        changed = False
        for node in found:
            rank = _rank(node)
            if rank is None:
                continue
            op = unit.builder(f"{node.name or node.op_type}/")
            pads = _pads(op, node, rank)
            owner = node.graph
            assert owner is not None
            owner.insert_before(node, op.nodes)
            node.replace_input_with(1, pads)
            node.resize_inputs(3 if node.inputs[2] is not None else 2)
            changed = True
        return changed


def _has_axes(node: ir.Node) -> bool:
    return (
        node.op_type == "Pad" and node.domain in ("", "ai.onnx") and len(node.inputs) > 3 and node.inputs[3] is not None
    )


def _rank(node: ir.Node) -> int | None:
    for value in (node.inputs[0], node.outputs[0]):
        if value is not None and value.shape is not None:
            return len(value.shape)
    return None


def _pads(op: Builder, node: ir.Node, rank: int) -> Value:
    """Return the pads of all axes: a constant if pads and axes are constants."""
    pads, axes = node.inputs[1], node.inputs[3]
    assert pads is not None
    assert axes is not None
    chosen, known = walk.constant_of(axes), walk.constant_of(pads)
    zeros = np.zeros(2 * rank, np.int64)
    if chosen is None:
        wide = op.cast(axes, ir.DataType.INT64)
        positive = op.Where(op.Less(wide, 0), op.Add(wide, rank), wide)
        places = op.Concat(positive, op.Add(positive, rank), axis=0)
        return op.ScatterElements(zeros, places, pads, axis=0)
    index = np.concatenate([chosen % rank, chosen % rank + rank]).astype(np.int64)
    if known is None:
        return op.ScatterElements(zeros, index, pads, axis=0)
    zeros[index] = known
    return op.constant(zeros)


class JoinPaddedParts(Pass):
    """Replace a sum of padded parts that lie side by side by one Concat of the parts.

    The gradient of a value that is cut into parts, such as the projection of an attention layer into queries, keys and
    values, is a sum of gradients with zeros around each. Every part lies where the others have zeros.
    """

    requires = (NO_GRADIENTS,)

    def run(self, unit: Unit) -> bool:
        sums = [n for n in walk.all_nodes(unit.graph) if n.op_type in ("Add", "Sum") and n.domain in ("", "ai.onnx")]
        changed = [_join(node, unit.builder(f"{node.name or node.op_type}/")) for node in sums]
        if any(changed):
            edit.remove_dead_nodes(unit.graph)
        return any(changed)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A value with zeros around it on one axis, from `begin` to `end` of `size`; `others` are its other sizes."""

    data: Value
    axis: int
    begin: int
    end: int
    size: int
    others: tuple[int | str, ...]

    @property
    def rank(self) -> int:
        return len(self.others) + 1


def _part(value: Value | None) -> _Part | None:
    """Return what a Pad with zeros on one axis holds, if nothing else reads its result; None for any other value."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "Pad" or node.domain not in ("", "ai.onnx"):
        return None
    if node.attributes.get_string("mode", "constant") != "constant" or len(value.uses()) != 1:
        return None
    data, pads = node.inputs[0], walk.constant_of(node.inputs[1])
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    zero = None if fill is None else walk.constant_of(fill)
    if data is None or pads is None or data.shape is None or (fill is not None and (zero is None or zero.any())):
        return None
    rank = len(data.shape)
    if value.is_graph_output() or len(pads) != 2 * rank or (pads < 0).any():
        return None
    padded = np.flatnonzero(pads[:rank] + pads[rank:])
    if len(padded) != 1:
        return None
    axis = int(padded[0])
    sizes = shapes.dims(data) or ()
    length, before, behind = sizes[axis], int(pads[axis]), int(pads[axis + rank])
    others = tuple(size for k, size in enumerate(sizes) if k != axis and size is not None)
    if not isinstance(length, int) or len(others) != rank - 1:
        return None
    return _Part(data, axis, before, before + length, before + length + behind, others)


def _join(node: ir.Node, op: Builder) -> bool:
    found = [(value, _part(value)) for value in node.inputs]
    parts = sorted((p for _, p in found if p is not None), key=lambda p: (p.axis, p.size, str(p.others), p.begin))
    runs: list[list[_Part]] = []
    for part in parts:
        last = runs[-1][-1] if runs else None
        # Parts of other sizes, which the sum would broadcast, do not lie side by side.
        if last is not None and last.end == part.begin and _around(last) == _around(part):
            runs[-1].append(part)
        else:
            runs.append([part])
    joined = {part for run in runs if len(run) > 1 for part in run}
    if not joined:
        return False
    terms = [value for value, part in found if part not in joined]
    terms += [_concatenated(op, run) for run in runs if len(run) > 1]
    total = terms[0] if len(terms) == 1 else op.Add(*terms) if len(terms) == 2 else op.Sum(*terms)
    assert total is not None
    edit.replace_node(node, op, [total])
    return True


def _around(part: _Part) -> tuple[object, ...]:
    return part.axis, part.size, part.others


def _concatenated(op: Builder, run: list[_Part]) -> Value:
    """Return the parts of a run beside each other, with zeros around them where they do not fill the axis."""
    first, last = run[0], run[-1]
    whole = op.Concat(*(part.data for part in run), axis=first.axis)
    pads = np.zeros(2 * first.rank, np.int64)
    pads[first.axis], pads[first.axis + first.rank] = first.begin, last.size - last.end
    return op.Pad(whole, pads) if pads.any() else whole
