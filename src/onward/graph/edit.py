"""Change onnx-ir graphs: copy values, nodes and graphs, replace one node by several, remove dead nodes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onward.graph.builder import Builder, Names, Value
from onward.graph.walk import GraphLike, all_nodes, subgraphs


def copy_value(value: ir.Value, name: str | None = None) -> ir.Value:
    """Return a new value with the type, shape and documentation of `value`."""
    new = ir.Value(
        name=name if name is not None else value.name,
        type=value.type,
        shape=None if value.shape is None else value.shape.copy(),
        doc_string=value.doc_string,
        const_value=value.const_value,
    )
    new.metadata_props.update(value.metadata_props)
    return new


def copy_nodes(
    nodes: Iterable[ir.Node],
    values: dict[ir.Value, ir.Value],
    *,
    names: Names | None = None,
    prefix: str = "",
    attributes: Mapping[str, ir.Attr] | None = None,
) -> list[ir.Node]:
    """Return copies of `nodes` that read `values[v]` wherever the originals read `v`.

    `values` gets an entry for every output. Values that are not in it (of outer scopes) are read as they are. With
    `names`, outputs and nodes get new names that begin with `prefix`; without, they keep theirs. `attributes` are the
    attributes of a function's call: a reference to one of them becomes its value, and other references are dropped.
    """
    return [_copy_node(node, values, names, prefix, attributes) for node in nodes]


def _copy_node(
    node: ir.Node,
    values: dict[ir.Value, ir.Value],
    names: Names | None,
    prefix: str,
    attributes: Mapping[str, ir.Attr] | None,
) -> ir.Node:
    def fresh(name: str | None) -> str | None:
        return name if names is None or not name else names.unique(prefix + name)

    new_attributes: list[ir.Attr] = []
    for key, attribute in node.attributes.items():
        if attribute.is_ref():
            if attributes is None:
                new_attributes.append(attribute)
            elif (given_name := attribute.ref_attr_name or "") in attributes:
                given = attributes[given_name]
                new_attributes.append(
                    ir.RefAttr(key, given.ref_attr_name, given.type)
                    if given.is_ref() and given.ref_attr_name is not None
                    else ir.Attr(key, given.type, given.value)
                )
        elif attribute.type == ir.AttributeType.GRAPH:
            graph = copy_graph(attribute.as_graph(), values, names=names, prefix=prefix, attributes=attributes)
            new_attributes.append(ir.AttrGraph(key, graph))
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs = [
                copy_graph(g, values, names=names, prefix=prefix, attributes=attributes) for g in attribute.as_graphs()
            ]
            new_attributes.append(ir.AttrGraphs(key, graphs))
        else:
            new_attributes.append(attribute)
    new = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else values.get(v, v) for v in node.inputs],
        new_attributes,
        overload=node.overload,
        num_outputs=len(node.outputs),
        version=node.version,
        name=fresh(node.name),
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
    for old_output, new_output in zip(node.outputs, new.outputs, strict=True):
        new_output.name = fresh(old_output.name)
        new_output.type = old_output.type
        new_output.shape = None if old_output.shape is None else old_output.shape.copy()
        new_output.doc_string = old_output.doc_string
        new_output.const_value = old_output.const_value
        new_output.metadata_props.update(old_output.metadata_props)
        values[old_output] = new_output
    return new


def copy_graph(
    graph: ir.Graph,
    values: dict[ir.Value, ir.Value] | None = None,
    *,
    names: Names | None = None,
    prefix: str = "",
    attributes: Mapping[str, ir.Attr] | None = None,
) -> ir.Graph:
    """Return a copy of `graph` that shares its tensors and reads `values[v]` instead of an outer value `v`."""
    values = {} if values is None else values
    for value in [*graph.inputs, *graph.initializers.values()]:
        if value not in values:
            name = value.name
            if names is not None and name:
                name = names.unique(prefix + name)
            values[value] = copy_value(value, name)
    nodes = copy_nodes(graph, values, names=names, prefix=prefix, attributes=attributes)
    new = ir.Graph(
        [values[v] for v in graph.inputs],
        [values.get(v, v) for v in graph.outputs],
        nodes=nodes,
        initializers=[values[v] for v in graph.initializers.values()],
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )
    new.meta.update(graph.meta)
    return new


def remove_dead_nodes(graph: GraphLike, candidates: Iterable[ir.Node] | None = None) -> int:
    """Remove the nodes, or those of `candidates`, whose outputs are not read; return how many.

    What the branches and bodies of a dead node read is not read.
    """
    allowed = None if candidates is None else set(candidates)
    owners = Counter(id(inner) for node in graph for inner in subgraphs(node))
    dead: set[ir.Node] = set()
    inside: set[ir.Node] = set()  # the nodes in the subgraphs of dead nodes
    for node in reversed(graph):
        if allowed is None or node in allowed:
            uses = (use.node for v in node.outputs for use in v.uses())
            if not any(v.is_graph_output() for v in node.outputs) and all(u in dead or u in inside for u in uses):
                dead.add(node)
                inside.update(n for inner in subgraphs(node) if owners[id(inner)] == 1 for n in all_nodes(inner))
    for node in (*inside, *dead):
        set_inputs(node, [])
    graph.remove(dead, safe=True)  # at once: each call looks at all outputs of the graph
    return len(dead)


def detach(node: ir.Node) -> None:
    """Take a node that nothing reads, and that reads nothing, out of its graph, in constant time.

    onnx-ir's `graph.remove` makes a set of all outputs of the graph first: a training step has three or four for each
    parameter, so that to replace a node of every layer took time quadratic in the layers. Hence the private names.
    """
    graph = node.graph
    assert graph is not None
    assert not any(v.uses() or v.is_graph_output() for v in node.outputs), f"`{node.name}` is still read"
    node.graph = None
    graph._nodes.remove(node)


def forget(nodes: Iterable[ir.Node]) -> None:
    """Let nodes that are in no graph, and those of their bodies, read nothing: what they read counts as unread."""
    for node in nodes:
        for inner in (node, *(n for body in subgraphs(node) for n in all_nodes(body))):
            set_inputs(inner, [])


def set_inputs(node: ir.Node, inputs: Sequence[Value | None]) -> None:
    """Let `node` read `inputs` and nothing else, in time linear in their number.

    onnx-ir changes one input at a time and copies all of them each time. An optimizer has four inputs for each
    parameter, so that took most of the compilation of models with a thousand parameters. Hence the private names.
    """
    before, node._inputs = node.inputs, tuple(inputs)
    for index, (old, new) in enumerate(itertools.zip_longest(before, inputs)):
        if old is not new:
            if old is not None:
                old._remove_usage(node, index)
            if new is not None:
                new._add_usage(node, index)


def replace_uses(replaced: Mapping[Value, Value]) -> None:
    """Replace every use of each key of `replaced` by its value; graphs that return the key return the value."""
    for node in dict.fromkeys(use.node for old in replaced for use in old.uses()):
        set_inputs(node, [None if v is None else replaced.get(v, v) for v in node.inputs])
    for graph in dict.fromkeys(old.graph for old in replaced if old.is_graph_output()):
        assert graph is not None
        for index, output in enumerate(list(graph.outputs)):
            if output in replaced:
                graph.outputs[index] = replaced[output]


def take_place(old: ir.Value, new: ir.Value) -> None:
    """Replace every use of `old` by `new`, which gets its name, and its type and shape if it has a type."""
    take_places({old: new})


def take_places(replaced: Mapping[Value, Value]) -> None:
    """Do what `take_place` does for each key of `replaced` and its value; nodes that read many of them change once."""
    replace_uses(replaced)
    for old, new in replaced.items():
        if old.type is not None:
            new.type, new.shape = old.type, old.shape
        old.name, new.name = None, old.name


def replace_node(node: ir.Node, op: Builder, outputs: Sequence[Value]) -> None:
    """Replace `node` by the nodes of `op`; `outputs` get the names and uses of its outputs."""
    graph = node.graph
    assert graph is not None
    made = set(op.nodes)
    finals: dict[Value, None] = {}
    for value in outputs:
        producer = value.producer()
        if producer not in made or producer.op_type == "Constant" or value in finals:
            value = op.Identity(value)
        finals[value] = None
    graph.insert_before(node, op.nodes)
    replaced = dict(zip(node.outputs, finals, strict=False))
    replace_uses(replaced)
    for old, new in replaced.items():
        if new.type is None:
            new.type = old.type
        if new.shape is None:
            new.shape = old.shape
        old.name, new.name = None, old.name
    set_inputs(node, [])
    detach(node)
