"""Convert files of ONNX 1.7, whose algorithms call the inference graph with `GraphCall`.

Since ONNX 1.8 a training step runs the inference graph and then the algorithm, as one graph. A call that does the same
is removed; a copy of the inference graph's nodes replaces any other call. In 1.7 an algorithm could not read the values
inside the inference graph, so it may use the same names for its own values; those are renamed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import Diagnostic, ModelError, counted, named_nodes
from onward.graph.builder import Names
from onward.graph.schema import TRAINING_DOMAIN
from onward.upgrade.opset import all_names

M120 = "M120"
CALLED = "onward.called"  # the key of an input of the graph that had another name as the input of an algorithm, in JSON


def has_graph_call(proto: onnx.ModelProto) -> bool:
    """Return whether an algorithm calls the inference graph, as in ONNX 1.7."""
    return any(_is_call(n) for info in proto.training_info for n, *_ in _nodes(info.algorithm))


def remove_graph_calls(proto: onnx.ModelProto) -> list[dict[str, str]]:
    """Replace every `GraphCall` of `proto`, in place; bindings and `Gradient` attributes follow renamed values.

    Returns for each entry the inputs of its algorithm that have another name now: that of an input of the graph, which
    notes the old ones (`other_names`).

    Raises:
        ModelError: ONNX 1.7 does not allow a call.
    """
    problems: list[Diagnostic] = []
    renamed: list[dict[str, str]] = [{} for _ in proto.training_info]
    names = Names(all_names(proto))
    for index, info in enumerate(proto.training_info):
        place = f"training_info[{index}].algorithm"
        calls = [n for n in info.algorithm.node if _is_call(n)]
        for node, depth, name in _nodes(info.algorithm):
            if _is_call(node):
                problems += _check(node, depth, proto.graph, f"{place}, {name}")
        if calls and not problems:
            renamed[index] = _convert(info, proto.graph, calls, names)
    if problems:
        raise ModelError(problems)
    for value in proto.graph.input:
        others = sorted({old for names_of in renamed for old, new in names_of.items() if new == value.name})
        if others:
            value.metadata_props.add(key=CALLED, value=json.dumps(others))
    return renamed


def other_names(value: ir.Value) -> tuple[str, ...]:
    """Return the names that an input of the graph had as the input of an algorithm, in a file of ONNX 1.7."""
    try:
        found = json.loads(value.metadata_props.get(CALLED, "[]"))
    except ValueError:  # somebody else's metadata
        return ()
    return tuple(n for n in found if isinstance(n, str)) if isinstance(found, list) else ()


def _is_call(node: onnx.NodeProto) -> bool:
    return node.op_type == "GraphCall" and node.domain in (TRAINING_DOMAIN, "ai.onnx.training")


def _nodes(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, int, str]]:
    """Yield each node with the number of graphs around it and how a message names it."""
    stack = [(graph, 0)]
    while stack:
        current, depth = stack.pop()
        for node, name in zip(current.node, named_nodes(current.node), strict=True):
            yield node, depth, name
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append((attribute.g, depth + 1))
                stack.extend((g, depth + 1) for g in attribute.graphs)


def _check(call: onnx.NodeProto, depth: int, graph: onnx.GraphProto, where: str) -> Iterator[Diagnostic]:
    named = [a.s.decode("utf-8", "replace") for a in call.attribute if a.name == "graph_name"]
    if named != [graph.name]:
        found = f"`{named[0]}`" if named else "no `graph_name`"
        yield Diagnostic(M120, "the call names another graph", where, found, f"`{graph.name}`")
    if depth:
        yield Diagnostic(M120, "the call is inside a subgraph", where, needed="a node of the algorithm itself")
    if len(call.input) > len(graph.input) or len(call.output) > len(graph.output):
        yield Diagnostic(
            M120,
            "the call does not fit the graph",
            where,
            found=f"{counted(len(call.input), 'input')}, {counted(len(call.output), 'output')}",
            needed=f"at most {counted(len(graph.input), 'input')} and {counted(len(graph.output), 'output')}",
        )
    stored = {t.name for t in graph.initializer}
    given = [*call.input, *[""] * (len(graph.input) - len(call.input))]
    for argument, value in zip(given, graph.input, strict=False):
        if not argument and value.name not in stored:
            yield Diagnostic(M120, f"the call leaves out input `{value.name}`, which has no default", where)


def _convert(
    info: onnx.TrainingInfoProto, graph: onnx.GraphProto, calls: list[onnx.NodeProto], names: Names
) -> dict[str, str]:
    """Replace the calls of one algorithm; return the new names of its inputs."""
    algorithm = info.algorithm
    inputs = [v.name for v in algorithm.input]
    removed = next((c for c in calls if _runs_the_graph_itself(c, graph, algorithm)), None)
    same = {} if removed is None else _same_values(removed, graph)
    stored = {t.name for t in graph.initializer}
    own = {v.name for v in algorithm.input} | {t.name for t in algorithm.initializer}
    own |= {name for node in algorithm.node for name in node.output}
    hidden = {v.name for v in graph.input} | {name for node in graph.node for name in node.output}
    renames = dict(same)
    for name in sorted((own & hidden) - stored - {""}):
        if name not in same:
            renames[name] = names.unique(f"train/{name}")

    def rename(name: str) -> str:
        return renames.get(name, name)

    nodes: list[onnx.NodeProto] = []
    for node in algorithm.node:
        if removed is not None and node == removed:
            continue
        if _is_call(node):
            nodes += _inlined(node, graph, names, rename)
        else:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            _rename_node(copy, rename)
            nodes.append(copy)
    del algorithm.node[:]
    algorithm.node.extend(nodes)
    outputs = {v.name for v in graph.output}
    _keep(algorithm.input, lambda v: v.name not in same)
    _keep(algorithm.value_info, lambda v: v.name not in same)
    _keep(algorithm.output, lambda v: rename(v.name) not in outputs)
    for entry in [*algorithm.input, *algorithm.output, *algorithm.value_info, *algorithm.initializer]:
        entry.name = rename(entry.name)
    for binding in info.update_binding:
        binding.key, binding.value = rename(binding.key), rename(binding.value)
    for binding in info.initialization_binding:
        binding.key = rename(binding.key)
    return {name: rename(name) for name in inputs if rename(name) != name}


def _runs_the_graph_itself(call: onnx.NodeProto, graph: onnx.GraphProto, algorithm: onnx.GraphProto) -> bool:
    """Return whether the call passes each input of the algorithm to exactly one input of the graph."""
    stored = {t.name for t in graph.initializer}
    inputs = {v.name for v in algorithm.input} - {t.name for t in algorithm.initializer}
    handed: list[str] = []
    for argument, value in zip(call.input, graph.input, strict=False):
        if value.name in stored:
            if argument not in ("", value.name):
                return False
        elif argument in inputs:
            handed.append(argument)
        else:
            return False
    results = [name for name in call.output if name]
    return len(set(handed)) == len(handed) and len(set(results)) == len(results)


def _same_values(call: onnx.NodeProto, graph: onnx.GraphProto) -> dict[str, str]:
    """Return the name in the graph for each value of a call that is removed."""
    stored = {t.name for t in graph.initializer}
    same = {a: v.name for a, v in zip(call.input, graph.input, strict=False) if a and v.name not in stored}
    same.update({r: v.name for r, v in zip(call.output, graph.output, strict=False) if r})
    return same


def _inlined(
    call: onnx.NodeProto, graph: onnx.GraphProto, names: Names, rename: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """Return copies of the graph's nodes that replace the call."""
    mapping: dict[str, str] = {}
    for argument, value in zip(call.input, graph.input, strict=False):
        if argument:
            mapping[value.name] = rename(argument)
    prefix = f"{call.name or 'call'}/"
    extra: list[onnx.NodeProto] = []
    made = {name for node in graph.node for name in node.output}
    for result, value in zip(call.output, graph.output, strict=False):
        if not result:
            continue
        if value.name in made and value.name not in mapping:
            mapping[value.name] = rename(result)
        else:  # an input, an initializer, or a value that is an output twice
            source = mapping.get(value.name, value.name)
            extra.append(onnx.helper.make_node("Identity", [source], [rename(result)], names.unique(f"{prefix}copy")))
    for name in _defined(graph):
        mapping.setdefault(name, names.unique(prefix + name))
    nodes = []
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _rename_node(copy, lambda n: mapping.get(n, n))
        copy.name = names.unique(prefix + (node.name or node.op_type))
        nodes.append(copy)
    return nodes + extra


def _defined(graph: onnx.GraphProto) -> list[str]:
    """Return every name that the nodes of `graph` and of its subgraphs define."""
    found: dict[str, None] = {}
    stack: list[onnx.GraphProto] = [graph]
    while stack:
        current = stack.pop()
        if current is not graph:
            found.update((v.name, None) for v in current.input)
            found.update((t.name, None) for t in current.initializer)
        for node in current.node:
            found.update((name, None) for name in node.output if name)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)
    return list(found)


def _rename_node(node: onnx.NodeProto, rename: Callable[[str], str]) -> None:
    """Rename the values of a node, also in `Gradient` attributes and subgraphs."""
    for field in (node.input, node.output):
        for index, name in enumerate(field):
            field[index] = rename(name)
    for attribute in node.attribute:
        if node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN and attribute.name in ("xs", "zs", "y"):
            attribute.s = _renamed(attribute.s, rename)
            for index, data in enumerate(attribute.strings):
                attribute.strings[index] = _renamed(data, rename)
            if attribute.type == onnx.AttributeProto.STRINGS:
                attribute.ClearField("s")
        for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            for entry in [*inner.input, *inner.output, *inner.value_info, *inner.initializer]:
                entry.name = rename(entry.name)
            for inner_node in inner.node:
                _rename_node(inner_node, rename)


def _renamed(name: bytes, rename: Callable[[str], str]) -> bytes:
    return rename(name.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    for entry in [e for e in field if not wanted(e)]:
        field.remove(entry)
