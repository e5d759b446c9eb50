"""Let the native kernels compute batch normalisation in training, with the Relu behind it, and its gradient.

In the plain graph, the gradient of a layer is a dozen operators, five of which go over the whole batch.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.native.nodes import native, only_reader
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes


class UseNativeNormalizations(Pass):
    """Replace BatchNormalization that outputs its batch statistics (`ShareBatchStatistics`), and its gradient."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "BatchNormalization", _replace)


def _replace(node: ir.Node, op: Builder) -> bool:
    X, scale, bias = node.inputs[:3]
    if X is None or scale is None or bias is None or any(v.dtype != ir.DataType.FLOAT for v in (X, scale, bias)):
        return False
    momentum = node.attributes.get_float("momentum", 0.9)
    if not node.attributes.get_int("training_mode", 0) or momentum or len(node.outputs) != 3:
        return False
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    bits = int(np.float32(epsilon).view(np.int32))
    relu = only_reader(node.outputs[0], "Relu")
    end = node if relu is None else relu
    found = _find_gradient(node, epsilon)
    Y, mean, variance = native(op, "Normalize", [X, scale, bias], [bits, relu is not None], outputs=3, also=relu)
    assert node.graph is not None
    node.graph.insert_before(node, op.nodes)
    old, new = [end.outputs[0], *node.outputs[1:]], [Y, mean, variance]
    for before, after in zip(old, new, strict=True):
        edit.take_place(before, after)
    if found is not None:
        _replace_gradient(found, [X, scale, mean, variance], bits, Y if relu is not None else None, op)
    return True


@dataclasses.dataclass(frozen=True)
class _Gradient:
    """The values of the plain graph that a gradient kernel computes, and dY."""

    dY: Value
    dX: Value
    dscale: Value | None
    dbias: Value | None


def _replace_gradient(found: _Gradient, inputs: list[Value], bits: int, Y: Value | None, before: Builder) -> None:
    """Replace the gradient; where the Relu's mask makes dY and nobody else reads it, the kernel applies the mask."""
    maker = found.dX.producer()
    assert maker is not None
    assert maker.graph is not None
    op = Builder(before.opset, before.names, f"{maker.name}/")
    raw = None if Y is None else _before_mask(found, Y)
    if raw is not None and Y is not None:
        made = native(op, "NormalizeReluBack", [raw, *inputs, Y], [bits, 1], outputs=3)
    else:
        made = native(op, "NormalizeBack", [found.dY, *inputs], [bits, 0], outputs=3)
    # Each part reads dY only, so that the kernel can stand before the first of them.
    parts = [v for v in (found.dX, found.dscale, found.dbias) if v is not None]
    makers = {v.producer() for v in parts}
    first = next(n for n in maker.graph if n in makers)
    maker.graph.insert_before(first, op.nodes)
    for old, new in zip((found.dX, found.dscale, found.dbias), made, strict=True):
        if old is not None:
            edit.take_place(old, new)


def _before_mask(found: _Gradient, Y: Value) -> Value | None:
    """Return the gradient before the mask of the Relu with output Y."""
    node = found.dY.producer()
    if node is None or node.op_type != "Mul" or found.dY.is_graph_output() or len(found.dY.uses()) != 3:
        return None  # three parts of the gradient read dY
    for raw, mask in (node.inputs, reversed(node.inputs)):
        cast = None if mask is None else mask.producer()
        compared = (
            None if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None else cast.inputs[0].producer()
        )
        if compared is not None and compared.op_type == "Greater" and compared.inputs[0] is Y:
            zero = walk.constant_of(compared.inputs[1])
            if zero is not None and not zero.any():
                return raw
    return None


def _find_gradient(node: ir.Node, epsilon: float) -> _Gradient | None:
    """Return the gradient of a layer as the rule writes it; None for anything else.

    dX = (dY - dbias / n - centered * (dscale / deviation / n)) * (scale / deviation)
    """
    X, scale = node.inputs[:2]
    mean, variance = (_unsqueezed(v) for v in node.outputs[1:])
    centered = None if mean is None or X is None else _made(X, "Sub", X, mean)
    shifted = None if variance is None else _plus(variance, epsilon)
    deviation = None if shifted is None else _made(shifted, "Sqrt", shifted)
    column = None if scale is None else _unsqueezed(scale)
    if centered is None or deviation is None or column is None or X is None:
        return None
    slope = _made(column, "Div", column, deviation)
    ends = [] if slope is None else [u.node for u in slope.uses() if u.node.op_type == "Mul" and u.idx == 1]
    for end in ends:
        gradient = _parts(end, centered, deviation)
        if gradient is not None:
            return gradient
    return None


def _parts(end: ir.Node, centered: Value, deviation: Value) -> _Gradient | None:
    difference = _node(end.inputs[0], "Sub")
    left = None if difference is None else _node(difference.inputs[0], "Sub")
    right = None if difference is None else _node(difference.inputs[1], "Mul")
    if left is None or right is None or right.inputs[0] is not centered or left.inputs[0] is None:
        return None
    dY = left.inputs[0]
    offset, tilt = _node(left.inputs[1], "Div"), _node(right.inputs[1], "Div")
    per_deviation = None if tilt is None else _node(tilt.inputs[0], "Div")
    dscale = None if per_deviation is None else _node(per_deviation.inputs[0], "Div")
    if offset is None or tilt is None or per_deviation is None or dscale is None:
        return None
    total, product = _node(offset.inputs[0], "ReduceSum"), _node(dscale.inputs[0], "ReduceSum")
    times = None if product is None else _node(product.inputs[0], "Mul")
    if total is None or times is None or total.inputs[0] is not dY or tuple(times.inputs) != (dY, centered):
        return None
    if per_deviation.inputs[1] is not deviation or dscale.inputs[1] is not deviation:
        return None
    if offset.inputs[1] is not tilt.inputs[1]:  # the number of pixels of the batch
        return None
    return _Gradient(dY, end.outputs[0], _vector_of(dscale.outputs[0]), _vector_of(total.outputs[0]))


def _vector_of(value: Value) -> Value | None:
    """Return the vector that a sum with all axes is reshaped to, if somebody reads it."""
    found = [u.node for u in value.uses() if u.node.op_type == "Reshape" and u.idx == 0]
    return found[0].outputs[0] if len(found) == 1 else None


def _node(value: Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and not node.domain else None


def _made(value: Value, op_type: str, *inputs: Value) -> Value | None:
    for use in value.uses():
        if use.node.op_type == op_type and tuple(use.node.inputs) == inputs:
            return use.node.outputs[0]
    return None


def _plus(value: Value, number: float) -> Value | None:
    for use in value.uses():
        if use.node.op_type == "Add" and use.idx == 0:
            other = walk.constant_of(use.node.inputs[1])
            if other is not None and other.size == 1 and np.float32(other.item()) == np.float32(number):
                return use.node.outputs[0]
    return None


def _unsqueezed(vector: Value) -> Value | None:
    """Return a vector [C] with the axes of the images: [C, 1, 1] or [1, C, 1, 1]."""
    for use in vector.uses():
        if use.node.op_type == "Unsqueeze" and use.idx == 0:
            dims = shapes.dims(use.node.outputs[0])
            if dims is None or any(d != 1 for i, d in enumerate(dims) if i != len(dims) - 3 and d is not None):
                continue
            return use.node.outputs[0]
    return None
