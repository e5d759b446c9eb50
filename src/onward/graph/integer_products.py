"""Products of integers as the float products that they stand for: ConvInteger, MatMulInteger, MaxPool of integers.

A dynamically quantized layer computes `Cast(MatMulInteger(q, w)) * (q_scale * w_scale)`. The same numbers, up to the
rounding of floats, are `MatMul(DequantizeLinear(q), DequantizeLinear(w))`, which has a gradient.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onward.graph import edit
from onward.graph.builder import Builder, Names, Value
from onward.graph.shapes import static_shape
from onward.graph.walk import all_nodes, constant_of

_FLOAT_PRODUCTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


@dataclasses.dataclass(frozen=True)
class Quantized:
    """Integers, and the scale and zero point that make floats of them."""

    values: Value
    scale: Value
    zero: Value | None


@dataclasses.dataclass(frozen=True)
class _Bias:
    value: Value
    shape: Value | None
    """What the bias is reshaped to."""
    scales: tuple[Value, Value]


@dataclasses.dataclass(frozen=True)
class _Product:
    node: ir.Node
    operands: tuple[Quantized, Quantized]
    bias: _Bias | None
    scaled: ir.Node
    """The Mul that gives the floats: its output is what the float product computes."""


def has_integer_products(graph: ir.Graph) -> bool:
    """Return whether a node multiplies integers."""
    return any(n.op_type in _FLOAT_PRODUCTS for n in all_nodes(graph))


def to_float_products(nodes: Iterable[ir.Node], opset: int, names: Names) -> bool:
    """Replace the products of integers among `nodes`, in their graphs; return whether there were any.

    A product whose result is not scaled back to floats stays as it is.
    """
    changed = False
    for node in list(nodes):
        if node.domain not in ("", "ai.onnx") or node.graph is None:
            continue
        if node.op_type in _FLOAT_PRODUCTS and (product := _find(node)) is not None:
            _replace(product, opset, names)
            changed = True
        elif node.op_type == "MaxPool" and (source := _quantized_by(node.inputs[0])) is not None:
            changed |= _pool_floats(node, source, opset, names)
    return changed


def _replace(product: _Product, opset: int, names: Names) -> None:
    node, result = product.node, product.scaled.outputs[0]
    op = Builder(opset, names, prefix=f"{node.name or node.op_type}/")
    axes = (None, 0 if node.op_type == "ConvInteger" else -1)
    floats = [dequantized(op, each, axis) for each, axis in zip(product.operands, axes, strict=True)]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    made = op.call(_FLOAT_PRODUCTS[node.op_type], floats, **attributes)[0]
    made.type, made.shape = result.type, node.outputs[0].shape
    if product.bias is not None:
        bias, shape = product.bias.value, product.bias.shape
        made = op.Add(made, bias if shape is None else op.Reshape(bias, shape))
    graph = product.scaled.graph
    assert graph is not None
    graph.insert_before(product.scaled, op.nodes)
    edit.take_place(result, made)
    _remove_unused(product.scaled)


def dequantized(op: Builder, given: Quantized, axis: int | None) -> Value:
    """Return the floats of quantized values; a scale or zero point of several numbers belongs to `axis`."""
    scale_shape, zero_shape = _shape(given.scale), _shape(given.zero)
    if scale_shape is None or (given.zero is not None and zero_shape is None):
        return op.DequantizeLinear(given.values, given.scale, given.zero)
    # DequantizeLinear takes numbers or vectors, and the zero point in the shape of the scale.
    count = max(math.prod(scale_shape), 1 if zero_shape is None else math.prod(zero_shape))
    shape = () if count == 1 else (count,)
    scale = _in_shape(op, given.scale, shape)
    zero = None if given.zero is None else _in_shape(op, given.zero, shape)
    rank = len(given.values.shape) if given.values.shape is not None else 0
    along = None if count == 1 or axis is None else axis % rank if rank else axis
    return op.DequantizeLinear(given.values, scale, zero, axis=along)


def _in_shape(op: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """Return a scale or zero point as a number or vector of this shape."""
    if _shape(value) == shape:
        return value
    array = constant_of(value)
    if array is not None:
        return op.constant(np.broadcast_to(array.reshape(-1), shape or (1,)).reshape(shape))
    flat = op.Reshape(value, np.array([-1] if shape else [], np.int64))
    return op.Expand(flat, np.array(shape, np.int64)) if shape else flat


def _find(node: ir.Node) -> _Product | None:
    """Return the product of integers that ends in Cast and Mul with both scales, or None."""
    value, bias = node.outputs[0], None
    user = _only_user(value)
    if user is not None and user.op_type == "Add":
        # Older versions of ONNX Runtime add the bias to the integers, as a number of steps.
        bias = _bias_in_steps(user.inputs[1] if user.inputs[0] is value else user.inputs[0])
        user = None if bias is None else _only_user(user.outputs[0])
    if user is None or user.op_type != "Cast" or user.attributes["to"].as_int() not in _FLOATS:
        return None
    cast = user.outputs[0]
    scaled = _only_user(cast)
    if scaled is None or scaled.op_type != "Mul":
        return None
    scales = _factors(scaled.inputs[1] if scaled.inputs[0] is cast else scaled.inputs[0])
    first = _quantized_by(node.inputs[0]) or _looked_up(node, scales)
    if scales is None or first is None or first.scale not in scales or first.zero is not _input(node, 2):
        return None
    if bias is not None and set(bias.scales) != set(scales):
        return None
    (scale,) = [s for s in scales if s is not first.scale] or [first.scale]
    weights = node.inputs[1]
    assert weights is not None
    second = Quantized(weights, scale, _input(node, 3))
    return _Product(node, (first, second), bias, scaled) if _fits(node, second) else None


def _fits(node: ir.Node, weights: Quantized) -> bool:
    """Return whether scale and zero point belong to the whole tensor, or to the axis of the output's channels."""
    made = _quantized_by(weights.values)
    if made is not None:
        return made.scale is weights.scale and made.zero is weights.zero
    whole, scale = _shape(weights.values), _shape(weights.scale)
    zero = () if weights.zero is None else _shape(weights.zero)
    if not whole or scale is None or zero is None:
        return False
    convolves = node.op_type == "ConvInteger"
    if math.prod(scale) > 1:
        # It multiplies the output [N, C, ...] of a Conv, or [..., C] of a MatMul.
        place = len(whole) - 1 if convolves else 1
        if len(scale) < place or scale[-place] != math.prod(scale):
            return False
    return {math.prod(scale), math.prod(zero)} <= {1, whole[0 if convolves else -1]}


def _shape(value: Value | None) -> tuple[int, ...] | None:
    """Return the shape of a value; None if a dimension is not known."""
    if value is None:
        return None
    array = constant_of(value)
    return static_shape(value) if array is None else array.shape


def _quantized_by(value: Value | None) -> Quantized | None:
    """Return the scale and zero point of integers that QuantizeLinear or DynamicQuantizeLinear made."""
    node = _producer(value)
    if value is None or node is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "DynamicQuantizeLinear":
        return Quantized(value, node.outputs[1], node.outputs[2])
    if node.op_type == "QuantizeLinear" and node.inputs[1] is not None:
        scale = node.inputs[1]
        if scale.shape is not None and all(d == 1 for d in scale.shape):
            return Quantized(value, scale, _input(node, 2))
    return None


def _looked_up(node: ir.Node, scales: tuple[Value, Value] | None) -> Quantized | None:
    """Return the first operand if it is an embedding of stored integers; its scale is the first factor."""
    values = node.inputs[0]
    maker = _producer(values)
    if values is None or maker is None or maker.op_type != "Gather" or constant_of(maker.inputs[0]) is None:
        return None
    shape = None if scales is None else _shape(scales[0])
    if scales is None or shape is None or math.prod(shape) != 1:
        return None
    return Quantized(values, scales[0], _input(node, 2))


def _input(node: ir.Node, index: int) -> Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _producer(value: Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _factors(value: Value | None) -> tuple[Value, Value] | None:
    node = _producer(value)
    if node is None or node.op_type != "Mul" or node.inputs[0] is None or node.inputs[1] is None:
        return None
    return node.inputs[0], node.inputs[1]


def _bias_in_steps(value: Value | None) -> _Bias | None:
    """Return the bias that is `Reshape(Cast(Floor(bias / scale)))` as integers; the Reshape may be absent."""
    node, shape = _producer(value), None
    if node is not None and node.op_type == "Reshape":
        shape, node = node.inputs[1], _producer(node.inputs[0])
    for wanted in ("Cast", "Floor"):
        if node is None or node.op_type != wanted:
            return None
        node = _producer(node.inputs[0])
    if node is None or node.op_type != "Div" or node.inputs[0] is None:
        return None
    scales = _factors(node.inputs[1])
    return None if scales is None else _Bias(node.inputs[0], shape, scales)


def _pool_floats(node: ir.Node, source: Quantized, opset: int, names: Names) -> bool:
    """MaxPool of integers is MaxPool of the floats: the greatest integer is the greatest float."""
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return False
    op = Builder(opset, names, prefix=f"{node.name or node.op_type}/")
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    pooled = op.MaxPool(op.DequantizeLinear(source.values, source.scale, source.zero), **attributes)
    edit.replace_node(node, op, [op.QuantizeLinear(pooled, source.scale, source.zero)])
    return True


def _only_user(value: Value) -> ir.Node | None:
    users = list(value.uses())
    return users[0].node if len(users) == 1 and not value.is_graph_output() else None


def _remove_unused(node: ir.Node) -> None:
    """Remove a node that nothing reads, and then the nodes that only it read."""
    queue = [node]
    while queue:
        each = queue.pop()
        if each.graph is None or any(v.uses() or v.is_graph_output() for v in each.outputs):
            continue
        sources = [v.producer() for v in each.inputs if v is not None]
        each.graph.remove(each, safe=True)
        queue += [s for s in sources if s is not None]
