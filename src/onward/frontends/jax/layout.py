"""Let transpositions meet and cancel: JAX computes with channels last, ONNX convolves with channels first.

A convolution of JAX stands between two Transposes. Element-wise nodes, reductions and the like do not care about the
order of axes: they move before the Transpose that they read, until it meets its inverse. Only the recorded permutation
decides, never the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr.frame import constant_of
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import remove_dead_nodes
from onward.graph.schema import GRADIENT_DOMAIN

_ELEMENTWISE = frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Where", "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt",
        "Neg", "Reciprocal", "Abs", "Sign", "Erf", "Cast", "Identity", "Greater", "GreaterOrEqual", "Less",
        "LessOrEqual", "Not", "Equal", "And", "Or", "Softplus", "IsNaN", "IsInf", "Floor", "Ceil", "Round", "Dropout",
    }
)  # fmt: skip
_OF_GRADIENTS = frozenset(("StopGradient", "Tangent", "Attach"))
_REDUCTIONS = frozenset(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"))

Moved = tuple[Value, tuple[int, ...]]  # (value, order): the Transpose of the value with this `perm`


def cancel_transposes(graph: ir.Graph, opset: int, names: Names) -> None:
    """Move the nodes of `graph` before the Transposes that they read; those that meet their inverse go away."""
    moved: dict[Value, Moved] = {}
    for node in list(graph):
        if node.op_type == "Transpose" and node.domain == "":
            _meet(node, moved)
            continue
        op = Builder(opset, names, prefix=f"{(node.name or node.op_type).split('/')[0]}/")
        found = _reordered(node, op, moved)
        if found is None:
            continue
        made, order = found
        old = node.outputs[0]
        made.type = old.type
        made.shape = None if old.shape is None else _unordered(old.shape, order)
        made.metadata_props.update(old.metadata_props)
        back: Value = made
        if list(order) != sorted(order):
            back = op.Transpose(made, perm=list(order))
            moved[back] = (made, order)
        back.type, back.shape = old.type, None if old.shape is None else old.shape.copy()
        graph.insert_before(node, op.nodes)
        old.replace_all_uses_with(back)
    remove_dead_nodes(graph)


def _meet(node: ir.Node, moved: dict[Value, Moved]) -> None:
    """Note what a Transpose reads; join it with the Transpose before it."""
    x, out, perm = node.inputs[0], node.outputs[0], node.attributes.get_ints("perm", None)
    if x is None or perm is None:
        return
    order = tuple(int(i) for i in perm)
    if x in moved:
        inner, before = moved[x]
        order = tuple(before[i] for i in order)
        if list(order) == sorted(order):
            if not out.is_graph_output():
                out.replace_all_uses_with(inner)
            return
        node.replace_input_with(0, inner)
        node.attributes["perm"] = ir.AttrInt64s("perm", order)
        x = inner
    moved[out] = (x, order)


def _unordered(shape: ir.Shape, order: Sequence[int]) -> ir.Shape:
    """Return the shape of what a Transpose with this order has made `shape` of."""
    sizes: list[Any] = [None] * len(order)
    for after, before in enumerate(order):
        sizes[before] = shape[after]
    return ir.Shape(sizes)


def _reordered(node: ir.Node, op: Builder, moved: dict[Value, Moved]) -> Moved | None:
    """Return the node over what its Transposes read, and the order that gives its old result; None to leave it."""
    known = [moved[v] for v in node.inputs if v is not None and v in moved]
    if not known or any(v.is_graph_output() for v in node.outputs) or any(v.uses() for v in node.outputs[1:]):
        return None
    order = known[0][1]
    if node.domain == "" and node.op_type in _REDUCTIONS:
        return _reduced(node, op, moved)
    plain = node.domain == "" and node.op_type in _ELEMENTWISE
    if not plain and not (node.domain == GRADIENT_DOMAIN and node.op_type in _OF_GRADIENTS):
        return None
    shape = node.outputs[0].shape
    if shape is None or len(shape) != len(order):
        return None
    inputs: list[Value | None] = []
    for value in node.inputs:
        if value is not None and value in moved and moved[value][1] == order:
            inputs.append(moved[value][0])
            continue
        fitting = None if value is None else _small(value, op, order)
        if value is not None and fitting is None:
            return None
        inputs.append(fitting)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    (made, *_) = op.call(node.op_type, inputs, domain=node.domain, **attributes)
    return made, order


def _small(value: Value, op: Builder, order: Sequence[int]) -> Value | None:
    """Return a number, or a vector along one axis, for an operation over reordered axes; None for a larger array."""
    shape = value.shape
    if shape is None or len(shape) > len(order) or not all(isinstance(d, int) for d in shape):
        return None
    sizes = [1] * (len(order) - len(shape)) + [int(d) for d in shape]  # type: ignore[arg-type]
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    if not long:
        return value
    if len(long) > 1:
        return None
    wanted = np.ones(len(order), np.int64)
    wanted[order[long[0]]] = sizes[long[0]]
    known = constant_of(value)
    made: Value = op.constant(known.reshape(wanted)) if known is not None else op.Reshape(value, wanted)
    made.type, made.shape = value.type, ir.Shape([int(d) for d in wanted])
    return made


def _reduced(node: ir.Node, op: Builder, moved: dict[Value, Moved]) -> Moved | None:
    x = node.inputs[0]
    given = node.inputs[1] if len(node.inputs) == 2 else None
    axes = None if given is None else constant_of(given)
    if x is None or x not in moved or axes is None or not axes.size:
        return None
    inner, order = moved[x]
    over = [order[int(axis) % len(order)] for axis in axes]
    keep = bool(node.attributes.get_int("keepdims", 1))
    made = op.call(node.op_type, [inner, np.array(sorted(over), np.int64)], keepdims=int(keep))[0]
    if keep:
        return made, order
    left = [axis for axis in order if axis not in over]
    return made, tuple(int(i) for i in np.argsort(np.argsort(left)))
