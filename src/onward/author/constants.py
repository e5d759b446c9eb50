"""Convert weights in `Constant` nodes to initializers (decision 12)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.builder import Names
from onward.graph.walk import all_nodes
from onward.model.trainable import FIXED, WEIGHT_INPUTS, final_uses
from onward.model.training_model import FLOAT_TYPES

# Running statistics must be initializers too, because an update replaces them.
_LIFTED = WEIGHT_INPUTS | {("BatchNormalization", 3), ("BatchNormalization", 4)}


def lift_constants(graph: ir.Graph, names: Names, patterns: Sequence[str] = ()) -> list[ir.Value]:
    """Turn every `Constant` node that holds a weight into an initializer of the same name; return the initializers.

    A floating-point constant counts as a weight if it has two elements or more, or if an operator reads it as a weight.
    A single number in arithmetic stays a constant, unless one of `patterns` matches it; what is marked FIXED always
    does. Constants inside the bodies of If, Loop and Scan move to the outer graph. The results of the model do not
    change.
    """
    lifted = []
    for node in list(all_nodes(graph)):
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
            continue
        output = node.outputs[0]
        tensor = ir.convenience.get_const_tensor(output)
        if (
            tensor is None
            or tensor.dtype not in FLOAT_TYPES
            or output.is_graph_output()
            or FIXED in output.metadata_props
        ):
            continue
        named = any(p.strip("*") and fnmatch.fnmatchcase(output.name or "", p) for p in patterns)
        if not named and tensor.size < 2 and not any((n.op_type, i) in _LIFTED for n, i in final_uses(output)):
            continue
        lifted.append(_lift(node, output, tensor, graph, names))
    return lifted


def _lift(node: ir.Node, output: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph, names: Names) -> ir.Value:
    name = output.name or names.unique("weight")
    inner = node.graph
    if inner is not graph and name in graph.initializers:
        name = names.unique(name)
    array = tensor.numpy()
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        doc_string=output.doc_string,
        const_value=ir.tensor(array, name=name),
        metadata_props=dict(output.metadata_props),
    )
    ir.convenience.replace_all_uses_with(output, value)
    assert inner is not None
    inner.remove(node, safe=True)
    graph.register_initializer(value)
    return value
