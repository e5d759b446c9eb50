"""Small tools over onnx-ir graphs: copy nodes, list what they read, find what a value depends on, infer shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onward.model import writer
from onward.model.builder import Names
from onward.model.reader import describe

GraphLike = ir.Graph | ir.Function

_INFERENCE_SIZE_LIMIT = 1024  # larger constants do not help shape inference and cost memory

_GRAPH_TYPES = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs that `node` carries in its attributes (the branches of If, the body of Loop and Scan)."""
    for attribute in node.attributes.data.values():  # this is asked of every node: the plain dict is quicker
        if attribute.type not in _GRAPH_TYPES or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        else:
            yield from attribute.as_graphs()


def all_nodes(graph: GraphLike) -> Iterator[ir.Node]:
    """Yield every node of `graph`, those of nested graphs included, outer ones first."""
    for node in graph:
        yield node
        for sub in subgraphs(node):
            yield from all_nodes(sub)


def captured(graph: ir.Graph) -> list[ir.Value]:
    """Return the values of outer scopes that `graph` reads, nested graphs included, each once, in order of use."""
    own: set[int] = set()
    seen: dict[int, ir.Value] = {}

    def visit(inner: ir.Graph) -> None:
        own.update(id(v) for v in inner.inputs)
        own.update(id(v) for v in inner.initializers.values())
        for node in inner:
            for value in node.inputs:
                if value is not None and id(value) not in own:
                    seen.setdefault(id(value), value)
            for sub in subgraphs(node):
                visit(sub)
            own.update(id(v) for v in node.outputs)
        for value in inner.outputs:
            if id(value) not in own:
                seen.setdefault(id(value), value)

    visit(graph)
    return list(seen.values())


def reads(node: ir.Node) -> list[ir.Value]:
    """Return every value `node` reads: its inputs, and what its subgraphs capture."""
    values = [v for v in node.inputs if v is not None]
    for graph in subgraphs(node):
        values += captured(graph)
    return values


def all_names(graph: GraphLike) -> set[str]:
    """Return every value and node name in `graph` and its subgraphs."""
    names: set[str] = set()

    def visit(inner: GraphLike) -> None:
        names.update(v.name for v in inner.inputs if v.name)
        if isinstance(inner, ir.Graph):
            names.update(inner.initializers)
        for node in inner:
            if node.name:
                names.add(node.name)
            names.update(v.name for v in node.outputs if v.name)
            names.update(v.name for v in node.inputs if v is not None and v.name)
            for sub in subgraphs(node):
                visit(sub)

    visit(graph)
    return names


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

    `values` gains an entry for every output. Values that are not in it are read as they are (outer scope). With
    `names`, outputs and nodes get fresh names under `prefix`; without, they keep theirs. `attributes` resolves
    references to a function's attributes: present ones are substituted, absent ones dropped.
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
    """Return a copy of `graph`; outer values are read through `values`, tensors are shared."""
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


def ancestors(wanted: Iterable[ir.Value], stop: Iterable[ir.Value] = ()) -> set[ir.Node]:
    """Return every node that a `wanted` value depends on, not looking behind the values in `stop`."""
    halt = {id(v) for v in stop}
    found: set[ir.Node] = set()
    queue = [v for v in wanted if id(v) not in halt]
    while queue:
        node = queue.pop().producer()
        if node is None or node in found:
            continue
        found.add(node)
        queue += [v for v in reads(node) if id(v) not in halt]
    return found


def remove_dead_nodes(graph: GraphLike, candidates: Iterable[ir.Node] | None = None) -> int:
    """Remove nodes whose outputs nobody reads; return how many. Looks only at `candidates` if given."""
    allowed = None if candidates is None else set(candidates)
    removed = 0
    for node in reversed(list(graph)):
        if allowed is not None and node not in allowed:
            continue
        if all(not v.uses() and not v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
            removed += 1
    return removed


def take_place(old: ir.Value, new: ir.Value) -> None:
    """Let `new` have the name and every use of `old`, and its type and shape where it has a type."""
    name = old.name
    if old.type is not None:
        new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of a value that is a Constant's output, else None.

    Initializers count only when they are not graph inputs; callers that may not bake in parameters must hand over
    graphs whose state is pure inputs (decision 2), so an initializer here is a true constant.
    """
    if value is None or value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor is None:
        node = value.producer()
        if node is None or node.op_type != "Constant" or node.domain != "":
            return None
        tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def infer_shapes(model: ir.Model, algorithm: ir.Graph | None = None, *, strict: bool = False) -> None:
    """Fill in the types and shapes of all values of `model`, by onnx's own inference with data propagation.

    With `algorithm`, the standard's combined graph is inferred and both graphs are filled in. Large initializers take
    part by type and shape only. With `strict`, an inconsistency raises `onnx.shape_inference.InferenceError`;
    without, what could be inferred is kept.
    """
    proto = _light_proto(model)
    if algorithm is not None:
        extra = _light_graph(algorithm)
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(proto.graph, field).extend(getattr(extra, field))
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=strict, strict_mode=strict, data_prop=True)
    nodes = list(model.graph) + ([] if algorithm is None else list(algorithm))
    merge_inferred(nodes, inferred.graph)


def _light_proto(model: ir.Model) -> onnx.ModelProto:
    """Serialize `model` with large initializers turned into inputs."""
    graph = model.graph
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in model.functions.values():
        writer.Writer().function(proto.functions.add(), function)
    proto.graph.CopyFrom(_light_graph(graph))
    return proto


def _light_graph(graph: ir.Graph) -> onnx.GraphProto:
    light = onnx.GraphProto(name=graph.name or "graph")
    given = set()
    for value in graph.inputs:
        writer.value_info(light.input.add(), value)
        given.add(value.name)
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.size > _INFERENCE_SIZE_LIMIT:
            if name not in given:
                writer.value_info(light.input.add(), value)
        else:
            writer.put_inline(light.initializer.add(), tensor)
            light.initializer[-1].name = name
    write = writer.Writer()
    for node in graph:
        write.node(light.node.add(), node)
        _stand_in(light.node[-1])
        for output in node.outputs:
            if output.name and output.type is not None and not output.is_graph_output():
                writer.value_info(light.value_info.add(), output)
    for value in graph.outputs:
        writer.value_info(light.output.add(), value)
    return light


def _stand_in(node: onnx.NodeProto) -> None:
    """Turn a node that onnx (1.23) has no or a wrong inference for into one with the same types and shapes."""
    if node.op_type == "STFT" and all(a.name != "onesided" for a in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))  # its default, which inference takes as 0
    # MeanVarianceNormalization's body fails inference in all types but float, and where axes is absent.
    if node.op_type in ("GroupNormalization", "MeanVarianceNormalization") and node.domain in ("", "ai.onnx"):
        node.op_type = "Identity"
        del node.input[1:]
        del node.attribute[:]


def merge_inferred(nodes: Iterable[ir.Node], proto: onnx.GraphProto) -> None:
    """Take over the types and shapes that onnx found for the serialized form of `nodes`."""
    infos = {info.name: info for info in [*proto.value_info, *proto.output]}
    _forget_sequence_symbols(infos.values())
    for node, node_proto in zip(nodes, proto.node, strict=True):
        for value in node.outputs:
            info = infos.get(value.name or "")
            if info is not None and info.HasField("type"):
                before = value.shape
                describe(value, info)
                if value.shape is None:  # what was known, such as a declared shape, stays known
                    value.shape = before
        inner = list(subgraphs(node))
        if inner:
            protos = [g for a in node_proto.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]
            for sub, sub_proto in zip(inner, protos, strict=True):
                merge_inferred(sub, sub_proto)


def _forget_sequence_symbols(infos: Iterable[onnx.ValueInfoProto]) -> None:
    """Remove the symbols that onnx made up for the elements of sequences.

    It gives the elements of a sequence one symbol although their sizes may differ, and hands it on to what is taken
    out of the sequence; a runtime that believes it reuses a buffer of the wrong size.
    """
    infos = list(infos)
    made_up: set[str] = set()
    for info in infos:
        element = info.type
        while element.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = element.WhichOneof("value")
            element = getattr(element, kind).elem_type
            if kind == "sequence_type":
                made_up.update(d.dim_param for d in element.tensor_type.shape.dim if d.dim_param.startswith("unk__"))
    if made_up:
        for info in infos:
            element = info.type
            while element.WhichOneof("value") in ("sequence_type", "optional_type"):
                element = getattr(element, element.WhichOneof("value")).elem_type
            for dim in element.tensor_type.shape.dim if element.HasField("tensor_type") else ():
                if dim.dim_param in made_up:
                    dim.ClearField("value")


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape if every dimension is known, else None."""
    if value.shape is None:
        return None
    dims = tuple(d if isinstance(d, int) else None for d in value.shape)
    return None if any(d is None for d in dims) else tuple(d for d in dims if d is not None)


def dims(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """Return per dimension an int, a symbol or None; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def sequence_of(values: Sequence[ir.Value]) -> str:
    """Return the names for a message: "`a`, `b`"."""
    return ", ".join(f"`{v.name}`" for v in values)
