"""Recognise tf.nn.dropout: `where(uniform >= rate, x / (1 - rate), 0)` becomes a Dropout node.

An evaluation, a backend or another tool knows then that it is one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Names, Value
from onward.graph.walk import constant_of


def recognise_dropouts(op: Builder, names: Names) -> int:
    """Replace every such group among the nodes of `op`, whose mask nothing else reads; return their number."""
    count = 0
    for node in [n for n in op.nodes if n.op_type == "Where" and n.domain == ""]:
        found = _match(node)
        if found is None:
            continue
        x, rate, order = found
        made = Builder(op.opset, names, prefix=op.prefix)
        x = x if order is None else made.Transpose(x, perm=order)
        value = made.Dropout(x, np.asarray(rate, np.float32), np.asarray(True))
        value.type, value.shape = node.outputs[0].type, node.outputs[0].shape
        place = op.nodes.index(node)
        op.nodes[place:place] = made.nodes
        node.outputs[0].replace_all_uses_with(value)
        count += 1
    return count


def _match(node: ir.Node) -> tuple[Value, float, list[int] | None] | None:
    """Return the data, the share that is dropped, and a permutation of axes, if `node` ends a dropout."""
    mask, kept, zero = node.inputs
    nothing = _constant(zero)
    if mask is None or kept is None or nothing is None or nothing.any():
        return None
    rate = _rate(mask)
    scaled = kept.producer()
    order = None
    if scaled is not None and scaled.op_type == "Transpose":  # of channels last, which tf2onnx moves through Mul
        order = [int(axis) for axis in scaled.attributes["perm"].as_ints()]
        moved = scaled.inputs[0]
        scaled = None if moved is None else moved.producer()
    if rate is None or scaled is None or scaled.op_type not in ("Mul", "Div"):
        return None
    for x, factor in (scaled.inputs, scaled.inputs[::-1]):
        number = _constant(factor)
        if (
            x is not None
            and number is not None
            and number.size == 1
            and (scaled.op_type == "Mul" or x is scaled.inputs[0])
        ):
            by = float(number.reshape(-1)[0])
            scale = by if scaled.op_type == "Mul" else 1.0 / by
            if np.isclose(scale, 1.0 / (1.0 - rate), rtol=1e-5):
                return x, rate, order
    return None


def _rate(mask: Value) -> float | None:
    """Return the rate of a mask `uniform >= rate` that is read once; its numbers have the shape of the data."""
    node = mask.producer()
    if node is None or len(list(mask.uses())) != 1:
        return None
    if node.op_type == "Not":
        inner = node.inputs[0]
        node = None if inner is None or len(list(inner.uses())) != 1 else inner.producer()
        if node is None or node.op_type != "Less":
            return None
    elif node.op_type != "GreaterOrEqual":
        return None
    numbers, limit = node.inputs
    rate = _constant(limit)
    maker = None if numbers is None else numbers.producer()
    if rate is None or rate.size != 1 or maker is None or maker.op_type != "RandomUniformLike":
        return None
    shape = _shape_of(maker)
    return float(rate.reshape(-1)[0]) if shape is not None and 0 < rate.reshape(-1)[0] < 1 else None


def _shape_of(maker: ir.Node) -> Value | None:
    """Return the tensor whose shape the numbers have: they were drawn for Shape(x), so that none is broadcast."""
    like = maker.inputs[0]
    zeros = None if like is None else like.producer()
    at = None if zeros is None else zeros.inputs[0]
    while at is not None:
        node = at.producer()
        if node is None or node.op_type not in ("Cast", "Identity", "Shape", "Gather"):
            return None
        if node.op_type == "Gather":
            chosen = constant_of(node.inputs[1])
            if chosen is None or sorted(chosen.reshape(-1).tolist()) != list(range(chosen.size)):
                return None  # not the sizes in another order
        if node.op_type == "Shape":
            return node.inputs[0]
        at = node.inputs[0]
    return None


def _constant(value: Value | None) -> np.ndarray | None:
    """Return a constant, also where it is cast, reshaped or repeated."""
    known = constant_of(value)
    if known is not None or value is None:
        return known
    node = value.producer()
    if node is not None and node.op_type in ("Identity", "Cast", "Reshape", "Unsqueeze", "Expand"):
        return _constant(node.inputs[0])
    return None
