"""Small copies of a graph for onnx's own inference and checker, with nodes that can be traced back.

A copy has no large data. Its nodes are named after their origin. `Gradient` becomes an `Identity` of each `xs[i]`,
which has the type of its output. Broken nodes and all that depend on them are removed, so that each error is reported
once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import TensorProto

from onward.check.safety import element_count, is_data_type
from onward.check.views import (
    BEFORE_ALL,
    GRAPH,
    GRAPHS,
    FunctionKey,
    Model,
    Node,
    View,
    domain_of,
    element_types,
    function_key,
    is_gradient,
    known_opset,
    strings,
)
from onward.graph.schema import raw_schema, schema
from onward.storage.writer import LIGHT_SIZE

_KEPT_BYTES = 64 * LIGHT_SIZE  # strings have no fixed size
_FOREIGN = "onward.foreign"  # the domain of experimental operators, which the default domain no longer has
# The types that ConstantOfShape may create, at every opset that has it.
_FILLABLE = (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Signature:
    """The signature of a function call: the type of each input and the given attributes."""

    body: View
    inputs: tuple[Any, ...]  # a TypeProto; None if the type is not known; ABSENT if the input is omitted
    attributes: Mapping[str, Any]


ABSENT = object()


class Copier:
    """Creates the copies of one model's graphs."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._views = list(model.views())
        self._numbers = {id(view): number for number, view in enumerate(self._views)}
        self._calls = {function_key(b.proto): called_functions(model, b) for b in model.bodies}
        self._bodies = {function_key(b.proto): b for b in reversed(model.bodies)}

    def tag(self, view: View, position: int) -> str:
        return f"#{self._numbers[id(view)]}#{position}"

    def located(self, tag: str) -> tuple[View, int]:
        """Return the graph and the position of the node with this tag."""
        _, number, position = tag.split("#")
        return self._views[int(number)], int(position)

    def copy(self, top: View, base_types: Mapping[str, Any], dropped: set[str] | None) -> onnx.ModelProto:
        """Return a copy of `top` as a model; `base_types` are the types of the outer values that an algorithm reads.

        Nodes with a tag in `dropped`, broken nodes and all that depend on them are removed; with None, no node is.
        """
        return _Copy(self, self._model, dropped).model(top, base_types)

    def copy_call(self, call: Signature, dropped: set[str]) -> onnx.ModelProto:
        """Return a copy of a function's body as a model, with the types and attributes of one call."""
        return _Copy(self, self._model, dropped).call(call)

    def body(self, key: FunctionKey) -> View:
        return self._bodies[key]

    def calls(self, key: FunctionKey) -> set[FunctionKey]:
        """Return the functions that a function calls directly."""
        return self._calls[key]

    def reachable(self, top: View) -> list[View]:
        """Return the bodies of the functions that `top` calls, directly or through others."""
        seen: set[FunctionKey] = set()
        stack = list(called_functions(self._model, top))
        while stack:
            key = stack.pop()
            if key not in seen:
                seen.add(key)
                stack.extend(self._calls[key])
        return [self._bodies[key] for key in sorted(seen)]


class _Copy:
    """One copy under construction."""

    def __init__(self, copier: Copier, model: Model, dropped: set[str] | None) -> None:
        self._copier = copier
        self._model = model
        self._dropped = dropped
        self._incomplete: set[FunctionKey] = set()  # functions with removed nodes

    def model(self, top: View, base_types: Mapping[str, Any]) -> onnx.ModelProto:
        copy = self._start(top, {"": 1, **self._model.opsets})
        unknown = {v.name for v in top.proto.input if not _is_declared(v) and v.name not in top.initializers}
        if top.base is not None:
            unknown |= self._import(top, top.base, copy.graph, base_types)
        self._graph(top, copy.graph, unknown)
        return copy

    def call(self, call: Signature) -> onnx.ModelProto:
        body = call.body
        copy = self._start(body, {"": self._model.opsets.get("", 1), **body.opsets})
        copy.graph.name = "call"
        unknown: set[str] = set()
        absent: set[str] = set()
        for name, given in zip(body.inputs, call.inputs, strict=True):
            if given is ABSENT:
                absent.add(name)
                continue
            value = copy.graph.input.add(name=name)
            if given is None:
                unknown.add(name)
            else:
                value.type.CopyFrom(given)
        self._nodes(body, copy.graph.node, unknown, set())
        _bind(copy.graph, call.attributes, absent)
        return copy

    def _start(self, top: View, opsets: Mapping[str, int]) -> onnx.ModelProto:
        """Return a model without nodes, with the functions that `top` calls."""
        copy = onnx.ModelProto(ir_version=min(max(self._model.proto.ir_version, 4), onnx.IR_VERSION))
        _import_opsets(opsets, copy)
        for body in _callees_first(self._model, self._copier.reachable(top)):
            if not self._function(body, copy.functions.add()):
                self._incomplete.add(function_key(body.proto))
        return copy

    def _graph(self, view: View, target: Any, unknown: set[str]) -> bool:
        source = view.proto
        target.name = source.name or "graph"
        misfits = self._model.misfits.get(id(view), ())
        target.input.extend(_declared(v) for v in source.input if v.name not in misfits)
        target.output.extend(_declared(v, v.name in misfits) for v in source.output)
        target.value_info.extend(_declared(v) for v in source.value_info if v.name not in misfits and _is_declared(v))
        inputs = set(view.inputs).difference(misfits)
        for name, tensor in view.initializers.items():
            count = element_count(tensor.dims)
            if not name or not is_data_type(tensor.data_type):
                unknown.add(name)
                continue
            if _is_small(tensor):
                target.initializer.add().CopyFrom(tensor)
            elif name not in inputs and count is not None:
                if view.parent is None:
                    target.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
                else:
                    _fill(name, tensor, target.node)
        for name, sparse in view.sparse.items():
            valid = element_count(sparse.dims) is not None and is_data_type(sparse.values.data_type)
            if name not in inputs and view.parent is None and valid:
                target.input.append(onnx.helper.make_tensor_value_info(name, sparse.values.data_type, sparse.dims))
        declared = {v.name for v in (*target.value_info, *target.output) if v.type.WhichOneof("value") is not None}
        return self._nodes(view, target.node, unknown, declared)

    def _function(self, body: View, target: Any) -> bool:
        for field in ("name", "domain", "overload"):
            setattr(target, field, getattr(body.proto, field))
        for field in ("input", "output", "attribute", "attribute_proto"):
            getattr(target, field).extend(getattr(body.proto, field))
        _import_opsets({"": self._model.opsets.get("", 1), **body.opsets}, target)
        return self._nodes(body, target.node, set(), set())

    def _nodes(self, view: View, target: Any, unknown: set[str], declared: set[str]) -> bool:
        """Copy the nodes and return whether all were copied; the outputs of the others are added to `unknown`."""
        complete = True
        for position, node in enumerate(view.nodes):
            if self._left_out(view, position, node, unknown) or not self._node(view, position, node, target, unknown):
                complete = False
                unknown.update(name for name in node.output if name and name not in declared)
        return complete

    def _left_out(self, view: View, position: int, node: Node, unknown: set[str]) -> bool:
        if self._dropped is None:
            return False
        if self._model.is_broken(view, position) or self._model.is_foreign(view, position):
            return True
        if self._copier.tag(view, position) in self._dropped or self._model.callee(node) in self._incomplete:
            return True
        if not unknown:
            return False
        read = [*node.input, *(strings(node, "xs") or ())] if is_gradient(node) else node.input
        return any(name in unknown for name in read)

    def _node(self, view: View, position: int, node: Node, target: Any, unknown: set[str]) -> bool:
        tag = self._copier.tag(view, position)
        if is_gradient(node):
            for name, output in zip(strings(node, "xs") or (), node.output, strict=False):
                if output and view.lookup(name, position) is not None:
                    target.add(op_type="Identity", input=[name], output=[output], name=tag)
            return True
        if node.op_type == "Constant" and not node.domain and self._fill_constant(node, target):
            return True
        children = view.children_of.get(position)
        if not children:
            fresh = target.add()
            fresh.CopyFrom(node)
            fresh.name = tag
            if not node.domain and self._model.is_foreign(view, position):
                fresh.domain = _FOREIGN  # onnx.checker leaves alone what it cannot know
            self._add_defaults(view, node, fresh)
            return True
        fresh = target.add(op_type=node.op_type, domain=node.domain, overload=node.overload, name=tag)
        fresh.input.extend(node.input)
        fresh.output.extend(node.output)
        remaining = iter(children)
        complete = True
        for attribute in node.attribute:
            added = fresh.attribute.add()
            if attribute.type == GRAPH:
                added.name, added.type = attribute.name, GRAPH
                complete &= self._graph(next(remaining), added.g, set(unknown))
            elif attribute.type == GRAPHS:
                added.name, added.type = attribute.name, GRAPHS
                for _ in attribute.graphs:
                    complete &= self._graph(next(remaining), added.graphs.add(), set(unknown))
            else:
                added.CopyFrom(attribute)
        if not complete:
            del target[-1]
        return complete

    def _add_defaults(self, view: View, node: Node, fresh: Any) -> None:
        """Add the default attributes of an operator that is a function: onnx infers its body without them."""
        domain = domain_of(node.domain)
        version = view.opsets.get(domain)
        if version is None or self._model.callee(node) is not None:
            return
        defaults = _function_defaults(node.op_type, domain, known_opset(domain, version))
        if defaults:
            given = {a.name for a in node.attribute}
            fresh.attribute.extend(a for a in defaults if a.name not in given)

    def _fill_constant(self, node: Node, target: Any) -> bool:
        """Replace a large constant with a node of the same type without data."""
        if len(node.attribute) != 1 or node.attribute[0].name != "value" or len(node.output) != 1:
            return False
        tensor = node.attribute[0].t
        if self._model.opsets.get("", 0) < 9 or tensor.data_type not in _FILLABLE:
            return False
        count = element_count(tensor.dims)
        if count is None or count <= LIGHT_SIZE:
            return False
        _fill(node.output[0], tensor, target)
        return True

    def _import(self, top: View, base: View, graph: Any, base_types: Mapping[str, Any]) -> set[str]:
        """Add the values of the inference graph that the algorithm reads: by value if small, else by type.

        Returns the names with an unknown type.
        """
        unknown: set[str] = set()
        for name in sorted(read_names(top)):
            if name in top.defined or name not in base.defined:
                continue
            position = base.defined[name]
            node = base.nodes[position] if position != BEFORE_ALL else None
            tensor = base.initializers.get(name)
            if tensor is not None and not is_data_type(tensor.data_type):
                unknown.add(name)
            elif tensor is not None and _is_small(tensor):
                graph.initializer.add().CopyFrom(tensor)
            elif node is not None and name in base_types and _is_small_constant(node):
                graph.node.add().CopyFrom(node)
                graph.node[-1].name = self._copier.tag(base, position)
            else:
                value = graph.input.add(name=name)
                if name in base_types:
                    value.type.CopyFrom(base_types[name])
                else:
                    unknown.add(name)
        return unknown


def _bind(graph: Any, attributes: Mapping[str, Any], absent: set[str]) -> None:
    """Replace references to attributes with those of the call, and omitted inputs with the empty name."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in absent:
                node.input[index] = ""
        bound = bind_attributes(node, attributes)
        del node.attribute[:]
        node.attribute.extend(bound)
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.type == GRAPH else attribute.graphs:
                _bind(inner, attributes, absent)


def bind_attributes(node: Node, attributes: Mapping[str, Any]) -> list[Any]:
    """Return the attributes of a node in a function's body, with references replaced by those of the call."""
    bound = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            bound.append(attribute)
        elif attribute.ref_attr_name in attributes:
            fresh = onnx.AttributeProto()
            fresh.CopyFrom(attributes[attribute.ref_attr_name])
            fresh.name = attribute.name
            bound.append(fresh)
    return bound


def _is_small(tensor: Any) -> bool:
    count = element_count(tensor.dims)
    small = count is not None and count <= LIGHT_SIZE and tensor.data_location != TensorProto.EXTERNAL
    return small and tensor.ByteSize() < _KEPT_BYTES


def _is_small_constant(node: Node) -> bool:
    return bool(node.op_type == "Constant" and not node.domain and node.ByteSize() < _KEPT_BYTES)


def _is_declared(value: Any) -> bool:
    return value.type.WhichOneof("value") is not None and all(is_data_type(e) for e in element_types(value.type))


def _declared(value: Any, untyped: bool = False) -> Any:
    """Return `value`, without its type if that is empty, and without sizes below 0, which runtimes take for unknown."""
    if untyped or not _is_declared(value):
        return onnx.ValueInfoProto(name=value.name)
    if not any(d.dim_value < 0 for d in value.type.tensor_type.shape.dim):
        return value
    known = onnx.ValueInfoProto()
    known.CopyFrom(value)
    for dim in known.type.tensor_type.shape.dim:
        if dim.dim_value < 0:
            dim.ClearField("dim_value")
    return known


def _import_opsets(opsets: Mapping[str, int], target: Any) -> None:
    for domain, version in {**opsets, _FOREIGN: 1}.items():
        target.opset_import.add(domain=domain, version=min(known_opset(domain, version), 2**31 - 1))


def _fill(name: str, tensor: Any, target: Any) -> None:
    dims = f"{name}#dims"
    shape = onnx.helper.make_tensor("", TensorProto.INT64, [len(tensor.dims)], list(tensor.dims))
    target.append(onnx.helper.make_node("Constant", [], [dims], value=shape))
    kind = tensor.data_type if tensor.data_type in _FILLABLE else TensorProto.FLOAT
    width = onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
    fill = TensorProto(data_type=kind, dims=[1], raw_data=bytes(width))
    target.append(onnx.helper.make_node("ConstantOfShape", [dims], [name], value=fill))


@functools.cache
def _function_defaults(op_type: str, domain: str, opset: int) -> tuple[Any, ...]:
    found = schema(op_type, domain, opset)
    if found is None or not found.has_function:
        return ()
    raw = raw_schema(op_type, domain, opset)
    return tuple(a.default_value for a in raw.attributes.values() if a.default_value.name)


def called_functions(model: Model, top: View) -> set[FunctionKey]:
    return {key for view in top.walk() for node in view.nodes if (key := model.callee(node)) is not None}


def _callees_first(model: Model, bodies: list[View]) -> list[View]:
    calls = {function_key(b.proto): called_functions(model, b) for b in bodies}
    by_key = {function_key(b.proto): b for b in bodies}
    order: list[View] = []
    done: set[FunctionKey] = set()
    stack = [(key, False) for key in calls]
    while stack:
        key, expanded = stack.pop()
        if key in done:
            continue
        if expanded:
            done.add(key)
            order.append(by_key[key])
        else:
            stack.append((key, True))
            stack.extend((other, False) for other in calls[key])
    return order


def read_names(top: View) -> set[str]:
    """Return every name that a graph and its subgraphs read, as input, as output or in a Gradient's xs."""
    names = set(top.outputs)
    for inner in top.walk():
        names.update(inner.outputs)
        for node in inner.nodes:
            names.update(node.input)
            if is_gradient(node):
                names.update(strings(node, "xs") or ())
    return names - {""}
