"""Write out the pads of every axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph import shapes, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit


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
