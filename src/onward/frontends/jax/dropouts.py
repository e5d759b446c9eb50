"""Recognise dropout: `where(bernoulli(keep), x / keep, 0)` becomes a Dropout node.

A backend, an evaluation or another tool knows then that it is one: an evaluation leaves it out.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import replace_node
from onward.graph.walk import all_nodes, constant_of


def recognise_dropouts(graph: ir.Graph, names: Names) -> int:
    """Replace every such group of nodes whose mask nothing else reads; return their number."""
    count = 0
    for node in list(all_nodes(graph)):
        found = _match(node) if node.op_type == "Where" and node.domain == "" else None
        if found is None:
            continue
        x, keep = found
        op = Builder(20, names, prefix="train/")
        made = op.Dropout(x, np.asarray(1.0 - keep, np.float32), np.asarray(True))
        made.type, made.shape = node.outputs[0].type, node.outputs[0].shape
        replace_node(node, op, [made])
        count += 1
    return count


def _match(node: ir.Node) -> tuple[Value, float] | None:
    """Return the data and the share that is kept, if `node` is the last node of a dropout."""
    mask, kept, zero = node.inputs
    assert mask is not None
    assert kept is not None
    nothing = _constant_behind(zero)
    if nothing is None or nothing.any() or kept.shape is None or node.outputs[0].shape != kept.shape:
        return None
    keep = _bernoulli(mask)
    scaled = kept.producer()
    if keep is None or mask.shape != kept.shape or scaled is None or scaled.op_type not in ("Div", "Mul"):
        return None
    x, factor = scaled.inputs
    number = _constant_behind(factor)
    if x is None or number is None or x.shape != kept.shape or number.size == 0:
        return None
    by = float(number.reshape(-1)[0]) if scaled.op_type == "Div" else 1.0 / float(number.reshape(-1)[0] or np.nan)
    return (x, keep) if np.isclose(by, keep, rtol=1e-6) and bool(np.all(number == number.reshape(-1)[0])) else None


def _bernoulli(mask: Value) -> float | None:
    """Return the probability of a mask that is drawn for one purpose only: uniform numbers below a constant."""
    node = mask.producer()
    if node is None or node.op_type != "Less" or len(list(mask.uses())) != 1 or mask.is_graph_output():
        return None
    numbers, limit = node.inputs
    keep = _constant_behind(limit)
    while numbers is not None and len(list(numbers.uses())) == 1 and (maker := numbers.producer()) is not None:
        if maker.op_type == "RandomUniformLike":
            return (
                float(keep.reshape(-1)[0]) if keep is not None and keep.size and 0 < keep.reshape(-1)[0] < 1 else None
            )
        neutral = {"Add": 0.0, "Mul": 1.0}.get(maker.op_type)  # what the bounds 0 and 1 of the draw leave behind
        other = _constant_behind(maker.inputs[1]) if neutral is not None else None
        if other is None or not np.all(other == neutral):
            return None
        numbers = maker.inputs[0]
    return None


def _constant_behind(value: Value | None) -> np.ndarray | None:
    """Return a constant, also where it is only repeated, cast, or the difference of two constants."""
    if value is None:
        return None
    known = constant_of(value)
    if known is not None:
        return known
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type in ("Expand", "Unsqueeze", "Reshape", "Identity", "Cast"):
        return _constant_behind(node.inputs[0])
    if node.op_type == "Sub":
        parts = [_constant_behind(v) for v in node.inputs]
        if parts[0] is not None and parts[1] is not None:
            difference: np.ndarray = parts[0] - parts[1]
            return difference
    return None
