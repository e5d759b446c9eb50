"""Convert weights in `Constant` nodes, and those inside branches and loops, to initializers (decision 12)."""

from __future__ import annotations

import collections
import fnmatch
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onward.graph.builder import Names
from onward.graph.walk import all_nodes, subgraphs
from onward.model.trainable import FIXED, LEARNED, WEIGHT_INPUTS, final_uses
from onward.model.training_model import FLOAT_TYPES

# Running statistics must be initializers too, because an update replaces them.
_LIFTED = WEIGHT_INPUTS | {("BatchNormalization", 3), ("BatchNormalization", 4)}


def lift_constants(graph: ir.Graph, names: Names, patterns: Sequence[str] = ()) -> list[ir.Value]:
    """Turn every `Constant` node that holds a weight into an initializer of the same name; return the initializers.

    A floating-point constant counts as a weight if it has two elements or more, or if an operator reads it as a weight,
    or if it was one in an operator of ai.onnx.ml. Any other single number in arithmetic stays a constant, unless one of
    `patterns` matches it; what is marked FIXED always does. Constants and initializers inside the bodies of If, Loop
    and Scan move to the outer graph. The results of the model do not change.
    """
    found = list(_weights(graph, patterns))
    # Branches may use one name each: what stays inside keeps its name, so a weight outside must not have it.
    staying = collections.Counter(_defined(graph)) - collections.Counter(value.name or "" for value, _ in found)
    return [_lift(value, tensor, graph, names, set(staying)) for value, tensor in found]


def _weights(graph: ir.Graph, patterns: Sequence[str]) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the outputs of Constant nodes, and the initializers of inner graphs, that hold weights."""
    for node in all_nodes(graph):
        for inner in subgraphs(node):
            for value in inner.initializers.values():
                tensor = value.const_value
                if tensor is not None and not value.is_graph_input() and _is_weight(value, tensor, patterns):
                    yield value, tensor
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.outputs) == 1:
            output = node.outputs[0]
            tensor = ir.convenience.get_const_tensor(output)
            if tensor is not None and _is_weight(output, tensor, patterns):
                yield output, tensor


def _defined(graph: ir.Graph) -> Iterator[str]:
    """Yield the name of each value that a graph or a body in it defines; branches may use one name each."""
    yield from (v.name or "" for v in graph.inputs)
    yield from graph.initializers
    for node in graph:
        yield from (v.name or "" for v in node.outputs)
        for inner in subgraphs(node):
            yield from _defined(inner)


def _is_weight(value: ir.Value, tensor: ir.TensorProtocol, patterns: Sequence[str]) -> bool:
    if tensor.dtype not in FLOAT_TYPES or value.is_graph_output() or FIXED in value.metadata_props:
        return False
    named = any(p.strip("*") and fnmatch.fnmatchcase(value.name or "", p) for p in patterns)
    if named or tensor.size >= 2 or LEARNED in value.metadata_props:
        return True
    return any((n.op_type, i) in _LIFTED for n, i in final_uses(value))


def _lift(inner: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph, names: Names, staying: set[str]) -> ir.Value:
    name = inner.name or names.unique("weight")
    if name in staying or name in graph.initializers:
        name = names.unique(name)
    array = tensor.numpy()
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        doc_string=inner.doc_string,
        const_value=ir.tensor(array, name=name),
        metadata_props=dict(inner.metadata_props),
    )
    ir.convenience.replace_all_uses_with(inner, value)
    node = inner.producer()
    if node is None:
        assert inner.graph is not None
        del inner.graph.initializers[inner.name]  # type: ignore[arg-type]  # an initializer has a name
    else:
        assert node.graph is not None
        node.graph.remove(node, safe=True)
    graph.register_initializer(value)
    return value
