"""Replace sequences of known length by plain tensors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph import shapes, walk
from onward.graph.edit import replace_node
from onward.passes.base import Pass, Unit


class SequencesToTensors(Pass):
    """Replace each SplitToSequence whose elements are taken at constant positions by a Split.

    PyTorch's exporter writes `tensor.split(n)` as SplitToSequence. The gradient of a Split is one Concat. The gradient
    of a sequence uses sequences, which are slow and which few runtimes support.
    """

    def run(self, unit: Unit) -> bool:
        found = [n for n in walk.all_nodes(unit.graph) if n.op_type == "SplitToSequence" and n.domain == ""]
        replaced = [_replace(node, unit) for node in found]
        return any(replaced)


def _replace(node: ir.Node, unit: Unit) -> bool:
    data, sizes = node.inputs[0], _sizes(node)
    taken = [use.node for use in node.outputs[0].uses()]
    positions = [walk.constant_of(n.inputs[1]) if n.op_type == "SequenceAt" else None for n in taken]
    if sizes is None or data is None or node.outputs[0].is_graph_output() or any(p is None for p in positions):
        return False
    if not all(-len(sizes) <= int(p) < len(sizes) for p in positions if p is not None):
        return False  # the runtime reports the invalid position
    axis = node.attributes.get_int("axis", 0)
    op = unit.builder(f"{node.name or node.op_type}/")
    parts = op.multi("Split", data, np.array(sizes, np.int64), axis=axis, outputs=len(sizes))
    owner = node.graph
    assert owner is not None
    owner.insert_before(node, op.nodes)
    for user, position in zip(taken, positions, strict=True):
        assert position is not None
        op = unit.builder(f"{user.name or user.op_type}/")
        part = parts[int(position)]
        stacked = len(node.inputs) < 2 and not node.attributes.get_int("keepdims", 1)
        replace_node(user, op, [op.Squeeze(part, [axis]) if stacked else op.Identity(part)])
    owner.remove(node, safe=True)
    return True


def _sizes(node: ir.Node) -> list[int] | None:
    """Return the sizes of the pieces; None where they are unknown."""
    axis = node.attributes.get_int("axis", 0)
    data = node.inputs[0]
    dims = shapes.dims(data) if data is not None else None
    size = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return [1] * size if isinstance(size, int) else None
    split = walk.constant_of(node.inputs[1])
    if split is None:
        return None
    if split.ndim:
        return [int(n) for n in split]
    each = int(split)
    if not isinstance(size, int) or each < 1:
        return None
    return [min(each, size - start) for start in range(0, size, each)]
