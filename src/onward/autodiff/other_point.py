"""Evaluation of part of a graph at another point, for a Gradient node whose inputs are not its xs and zs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onward.autodiff.emit import RANDOM, Emitter
from onward.autodiff.scope import Scope
from onward.errors import Diagnostic, NotDifferentiable, named_node
from onward.graph import edit, walk
from onward.graph.builder import Value

D105 = "D105"


def evaluate_again(y: Value, points: Mapping[Value, Value], stop: list[Value], scope: Scope, prefix: str) -> Evaluation:
    """Return nodes that compute `y` with each key of `points` replaced by its value.

    Only nodes that depend on a replaced value are copied. Random numbers are those of the first evaluation: random
    operators are not copied, and Dropout keeps its mask.
    """
    if scope.expand_calls(lambda: walk.ancestors([y], stop=[*points, *stop])):
        scope.infer()  # before copying: types missing in copied subgraphs are not inferred later
    needed = walk.ancestors([y], stop=[*points, *stop])
    values = dict(points)
    made: list[ir.Node] = []
    for node in scope.order():
        if node not in needed or not any(v in values for v in walk.reads(node)):
            continue
        if node.op_type == "Dropout" and node.domain == "":
            made += _same_dropout(node, values, scope, prefix)
        elif node.op_type in RANDOM and node.domain == "":
            continue
        else:
            _refuse_hidden_randomness(node)
            made += edit.copy_nodes([node], values, names=scope.names, prefix=prefix)
    return made, values.get(y, y)


Evaluation = tuple[list[ir.Node], Value]


def _same_dropout(node: ir.Node, values: dict[Value, Value], scope: Scope, prefix: str) -> list[ir.Node]:
    """Return nodes that apply the mask of the Dropout `node` to another input: data * mask / (1 - ratio)."""
    data, ratio, training = [*node.inputs, None, None][:3]
    assert data is not None
    if training is None or _is_false(training):
        values[node.outputs[0]] = values.get(data, data)
        return []
    if len(node.outputs) < 2 or not node.outputs[1].name:
        node.resize_outputs(2)
        node.outputs[1].name = scope.names.unique(f"{node.name or 'Dropout'}/mask")
    mask = node.outputs[1]
    mask.type, mask.shape = ir.TensorType(ir.DataType.BOOL), node.outputs[0].shape
    op = Emitter(scope.opset, scope.names, prefix=f"{prefix}{node.name or 'Dropout'}/")
    moved = values.get(data, data)
    dtype = data.dtype or ir.DataType.FLOAT
    one = op.constant(1.0, dtype)
    kept = op.constant(0.5, dtype) if ratio is None else op.Sub(one, op.cast(ratio, dtype))
    # Outside training the node passes its data through: the mask is all true and nothing is scaled.
    kept = op.Where(training, kept, one)
    zero = op.constant(0.0, dtype)
    result = op.Where(mask, op.Div(moved, kept), zero)  # ratio 1 drops everything: keep 0/0 out of the result
    result.type, result.shape = moved.type, moved.shape
    values[node.outputs[0]] = result
    return op.nodes


def _refuse_hidden_randomness(node: ir.Node) -> None:
    hidden = [n for g in walk.subgraphs(node) for n in walk.all_nodes(g) if n.op_type in RANDOM and n.domain == ""]
    if hidden:
        raise NotDifferentiable(
            Diagnostic(
                D105,
                f"`{node.op_type}` draws random numbers in a subgraph and has to be evaluated again at another point",
                place=f"{named_node(hidden[0])}, in {named_node(node)}",
                needed="the same random numbers at both points, which a subgraph does not output",
                hint="draw the random numbers outside and let the subgraph read them",
            )
        )


def _is_false(value: Value) -> bool:
    array = walk.constant_of(value)
    return array is not None and not bool(np.asarray(array).reshape(-1)[0])
