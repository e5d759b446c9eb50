"""The bodies of function calls, model-local ones and the standard's, which replace the calls for a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from onward.autodiff.registry import BODIES, find_rule, replaced_by_its_body
from onward.graph import edit, walk
from onward.graph.builder import Names
from onward.graph.schema import TRAINING_DOMAIN, raw_schema

Functions = Mapping[tuple[str, str, str], ir.Function]


def body_of(node: ir.Node, functions: Functions, opset: int) -> ir.Function | None:
    """Return the function that defines `node`: the model's own, a rule's, or the standard's at `opset`."""
    local = functions.get((node.domain, node.op_type, node.overload))
    if local is not None:
        return local
    own = BODIES.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
    return standard_body(node, opset) if own is None else own(node, opset)


def standard_body(node: ir.Node, opset: int) -> ir.Function | None:
    """Return the function that defines `node` in the standard at `opset`; None if there is none."""
    raw = raw_schema(node.op_type, node.domain, opset if node.domain in ("", "ai.onnx") else None)
    if raw is None:
        return None
    by_context = raw.has_context_dependent_function
    versions = raw.context_dependent_function_opset_versions if by_context else raw.function_opset_versions
    fitting = [v for v in versions if v <= opset]
    if not fitting:
        return None
    if by_context:
        if node.op_type == "SequenceMap" and any(v is None or v.type is None for v in node.inputs):
            return None  # without a type, onnx's own builder of this body ends the process
        proto = ir.serde.serialize_node(node).SerializeToString()
        types = [_type_bytes(v) for v in node.inputs]
        data = raw.get_context_dependent_function_with_opset_version(max(fitting), proto, types)
    else:
        data = raw.get_function_with_opset_version(max(fitting))
    function = onnx.FunctionProto.FromString(data)
    produced = {name for n in function.node for name in n.output} | set(function.input)
    for name in function.output:  # a body that depends on its context omits outputs that the node does not have
        if name not in produced:
            function.node.append(onnx.helper.make_node("Constant", [], [name], value_float=0.0))
    return ir.serde.deserialize_function(function) if function.node else None


def _type_bytes(value: ir.Value | None) -> bytes:
    if value is None or value.type is None:
        return bytes(onnx.TypeProto().SerializeToString())
    return bytes(ir.serde.serialize_value(value).type.SerializeToString())


def inline_call(node: ir.Node, function: ir.Function, names: Names) -> list[ir.Node]:
    """Replace `node` in its graph by the body of `function` and return the new nodes. Outputs keep their names."""
    graph = node.graph
    assert graph is not None
    given = [*node.inputs, *[None] * len(function.inputs)]
    values = {formal: actual for formal, actual in zip(function.inputs, given, strict=False) if actual is not None}
    absent = set(function.inputs) - values.keys()
    values |= _captures(node, function)
    attributes = _attributes(node, function)
    prefix = f"{node.name or node.op_type}/"
    copies = edit.copy_nodes(function, values, names=names, prefix=prefix, attributes=attributes)
    for copy in copies:
        for position, value in enumerate(copy.inputs):
            if value in absent:
                copy.replace_input_with(position, None)
    graph.insert_before(node, copies)
    made = set(copies)
    for old, formal in zip(node.outputs, function.outputs, strict=False):
        new = values[formal]
        if new.producer() not in made:  # the body passes an input through
            identity = ir.Node("", "Identity", [new], num_outputs=1, name=names.unique(f"{prefix}Identity"))
            graph.insert_before(node, identity)
            copies.append(identity)
            new = identity.outputs[0]
        edit.take_place(old, new)
    graph.remove(node, safe=True)
    _rename_in_gradients(copies, {old.name or "": new.name or "" for old, new in values.items()})
    return copies


def _captures(node: ir.Node, function: ir.Function) -> dict[ir.Value, ir.Value]:
    """Return what the bodies of a call read of the graph around it, by the values that stand for it in `function`.

    A body of the standard that depends on its context (SequenceMap's) holds those of the call, which came through a
    message: there, what they read outside has only its name.
    """
    outside = {v.name: v for body in walk.subgraphs(node) for v in walk.captured(body)}
    if not outside:
        return {}
    inside = [v for inner in function for body in walk.subgraphs(inner) for v in walk.captured(body)]
    return {
        v: outside[v.name] for v in inside if v.producer() is None and v not in function.inputs and v.name in outside
    }


def _rename_in_gradients(nodes: Iterable[ir.Node], names: Mapping[str, str]) -> None:
    """Rename the tensors in the attributes of Gradient nodes."""
    for node in nodes:
        for graph in walk.subgraphs(node):
            _rename_in_gradients(graph, names)
        if node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN:
            for key in ("xs", "zs"):
                if key in node.attributes:
                    renamed = [names.get(n, n) for n in node.attributes[key].as_strings()]
                    node.attributes[key] = ir.AttrStrings(key, renamed)
            if "y" in node.attributes:
                y = node.attributes["y"].as_string()
                node.attributes["y"] = ir.AttrString("y", names.get(y, y))


def _attributes(node: ir.Node, function: ir.Function) -> dict[str, ir.Attr]:
    attributes = {name: attr for name, attr in function.attributes.items() if attr.value is not None}
    raw = raw_schema(node.op_type, node.domain)
    if raw is not None:
        for name, formal in raw.attributes.items():
            if formal.default_value.type != onnx.AttributeProto.UNDEFINED:
                attributes.setdefault(name, ir.serde.deserialize_attribute(formal.default_value))
    attributes.update(node.attributes)
    return attributes


def needs_expansion(node: ir.Node, opset: int) -> bool:
    """Return whether `node` has to be replaced by its body: it has no gradient rule."""
    rule = find_rule(node.op_type, node.domain, opset)
    return rule is None or rule.function is replaced_by_its_body
