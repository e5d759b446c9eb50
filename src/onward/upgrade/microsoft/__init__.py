"""Decompose the `com.microsoft` operators of exported transformers, and `ai.onnx.ml`, into operators of `ai.onnx`.

ONNX Runtime's optimizer and its exporters write the former; no other runtime supports them, and they have no gradient.
scikit-learn's and ML.NET's exporters write the latter, whose weights are attributes, which nothing can train.
Converters of 2018 wrote experimental operators of ONNX, which the standard no longer has.
`decompose_microsoft` replaces them first. Nodes that it cannot express (packed or shared caches, rare mask layouts,
text, maps) stay in the graph; later stages report them. The decompositions of `ai.onnx.ml` are in `onward.upgrade.ml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Names, Value
from onward.model.ml_nodes import record
from onward.upgrade.microsoft import attention as attention  # importing it registers its decompositions
from onward.upgrade.microsoft import blockwise as blockwise
from onward.upgrade.microsoft import experimental as experimental
from onward.upgrade.microsoft import grouped as grouped
from onward.upgrade.microsoft import plain as plain
from onward.upgrade.microsoft import quantized as quantized
from onward.upgrade.microsoft.call import CLASSICAL, DOMAIN, SIMPLIFIED, TABLE, Call, CannotDecompose, Decomposition

__all__ = ["DOMAIN", "decompose_microsoft", "has_microsoft", "why_left"]


def decompose_microsoft(model: ir.Model) -> bool:
    """Replace the known operators of `com.microsoft` and `ai.onnx.ml`, in place; return whether there were any.

    Subgraphs and functions are included. Outputs keep their names. Works at any opset from 13.
    """
    everything: list[walk.GraphLike] = [model.graph, *model.functions.values()]
    changed = False
    while has_microsoft(model):
        # Some need ranks, which shape inference only finds behind operators that are already replaced: repeat.
        shapes.infer_shapes(model)
        if not _replace_once(model):
            break
        changed = True
    if changed:
        used = {node.domain for graph in everything for node in walk.all_nodes(graph)}
        for domain in {DOMAIN, CLASSICAL} - used:
            model.opset_imports.pop(domain, None)
    return changed


def has_microsoft(model: ir.Model) -> bool:
    """Return whether the model has an operator that `decompose_microsoft` knows."""
    return _find([model.graph, *model.functions.values()], lambda node: _known(node) is not None)


def _replace_once(model: ir.Model) -> bool:
    names = Names(walk.all_names(model.graph))
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    version = model.opset_imports.get(CLASSICAL, 1)
    changed = _replace_in(model.graph, opset, names, version)
    for function in model.functions.values():
        own = function.opset_imports.get("", opset)
        changed |= _replace_in(function, own, Names(walk.all_names(function)))
    return changed


def _known(node: ir.Node) -> Decomposition | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain == "" and experimental.is_standard(node):
        return None
    return TABLE.get((DOMAIN if domain == "" and node.op_type == SIMPLIFIED else domain, node.op_type))


def _replace_in(graph: walk.GraphLike, opset: int, names: Names, version: int | None = None) -> bool:
    changed = False
    for node in list(graph):
        for sub in walk.subgraphs(node):
            changed |= _replace_in(sub, opset, names)
        decomposition = _known(node)
        if decomposition is not None:
            changed |= _replace(graph, node, decomposition, opset, names, version)
    return changed


def _replace(
    graph: walk.GraphLike, node: ir.Node, decomposition: Decomposition, opset: int, names: Names, version: int | None
) -> bool:
    """Replace one node; return whether it could be. With `version`, an operator of `ai.onnx.ml` can be put back."""
    op = Builder(opset, names, prefix=f"{node.name or node.op_type}/")
    call = Call(node, op, version or 1)
    try:
        results = decomposition(call)
    except CannotDecompose:
        edit.forget(op.nodes)
        return False
    for index, output in enumerate(node.outputs):
        if output.name and (index >= len(results) or results[index] is None) and _is_used(output):
            edit.forget(op.nodes)
            return False
    results = [r if r is None or r.producer() in op.nodes else op.Identity(r) for r in results]
    if node.domain == CLASSICAL and version is not None and isinstance(graph, ir.Graph):
        record(graph, node, op.nodes, call, version)
    graph.insert_before(node, op.nodes)
    for output, result in zip(node.outputs, results, strict=False):
        if output.name and result is not None:
            edit.take_place(output, result)
    given = list(node.inputs)
    graph.remove(node, safe=True)
    edit.remove_dead_nodes(graph, op.nodes)
    for value in given:  # what was unpacked does not stay beside its copy
        if value is not None and value.is_initializer() and not value.is_graph_input() and not _is_used(value):
            assert value.graph is not None
            value.graph.initializers.pop(value.name, None)  # type: ignore[arg-type]  # an initializer has a name
    return True


def why_left(node: ir.Node, opset: int) -> str:
    """Return why a node of a known operator cannot be decomposed, or "" if it can be or is not known."""
    decomposition, op = _known(node), Builder(opset)
    if decomposition is None:
        return ""
    try:
        decomposition(Call(node, op))
    except CannotDecompose as error:
        return str(error)
    finally:
        edit.forget(op.nodes)
    return ""


def _is_used(value: Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _find(all_graphs: Iterable[walk.GraphLike], wanted: Callable[[ir.Node], bool]) -> bool:
    return any(wanted(node) or _find(walk.subgraphs(node), wanted) for graph in all_graphs for node in graph)
