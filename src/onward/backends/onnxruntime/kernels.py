"""Write nodes for which ONNX Runtime has no kernel, although it has the operator, with others that it has."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onward.autodiff.emit import Emitter
from onward.graph import edit, shapes, walk
from onward.passes.base import Pass, Unit


class AvoidMissingKernels(Pass):
    """Replace the nodes that ONNX Runtime refuses only when they run."""

    def run(self, unit: Unit) -> bool:
        shapes.infer_shapes(unit.model)
        changed = False
        for node in walk.all_nodes(unit.graph):
            write = _OTHERWISE.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if write is None:
                continue
            op = Emitter(unit.opset, unit.names, prefix=f"{node.name or node.op_type}/")
            made = write(node, op)
            if made is not None:
                edit.replace_node(node, op, [made])
                changed = True
        return changed


def _mod(node: ir.Node, op: Emitter) -> ir.Value | None:
    """With the sign of the divisor, for floats: the remainder with the sign of the dividend, moved by the divisor."""
    a, b = node.inputs
    assert a is not None
    assert b is not None
    if a.dtype is None or not a.dtype.is_floating_point() or node.attributes.get_int("fmod"):
        return None
    rest = op.Mod(a, b, fmod=1)
    other_side = op.Xor(op.Less(rest, 0.0), op.Less(b, 0.0))
    moves = op.And(other_side, op.Not(op.Equal(rest, 0.0)))
    return op.Where(moves, op.Add(rest, b), rest)


def _reduce_max(node: ir.Node, op: Emitter) -> ir.Value | None:
    """Of booleans: whether any is true."""
    x = node.inputs[0]
    assert x is not None
    if x.dtype != ir.DataType.BOOL:
        return None
    given = {k: a.value for k, a in node.attributes.items() if k in ("keepdims", "noop_with_empty_axes")}
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    return op.Greater(op.ReduceSum(op.cast(x, ir.DataType.INT32), axes, **given), 0)


def _string_normalizer(node: ir.Node, op: Emitter) -> ir.Value | None:
    """In the locale that every system has; ONNX Runtime asks for that of the United States."""
    if "locale" in node.attributes:
        return None
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return op.StringNormalizer(node.inputs[0], locale="C.UTF-8", **given)


_OTHERWISE: dict[str, Callable[[ir.Node, Emitter], ir.Value | None]] = {
    "Mod": _mod,
    "ReduceMax": _reduce_max,
    "StringNormalizer": _string_normalizer,
}
