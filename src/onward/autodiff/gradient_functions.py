"""The backward of one forward node as one node: a call of a function that holds the nodes of its rule.

Nodes whose backwards have the same structure share a function. Its inputs and outputs are named as in the rule:
`dX, dW = ConvGradient(dY, X, W)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from typing import Any

import onnx_ir as ir

from onward.autodiff.engine import Group
from onward.graph import edit, walk
from onward.graph.builder import Names, Value

DOMAIN = "onward.gradient"
_LEAST_NODES = 2  # a backward of one node is as easy to read as a call


def outline(model: ir.Model, groups: Sequence[Group], emitted: Iterable[ir.Node], names: Names) -> int:
    """Replace the nodes of each group by a call of a function, in place; return the number of functions.

    `emitted` are all nodes of the backward; constants among them move into the functions that read them. A group with
    subgraphs is not changed.
    """
    graph = model.graph
    emitted = list(emitted)
    constants = {n.outputs[0] for n in emitted if n.op_type == "Constant" and n.domain == ""}
    functions: dict[tuple[Any, ...], ir.Function] = {}
    taken = Names(f.name for f in model.functions.values() if f.domain == DOMAIN)
    before: dict[Value, Value] = {}  # by output of a call: the value it replaced
    for group in groups:
        nodes = [n for n in group.nodes if n.graph is graph and n.op_type != "Constant"]
        if len(nodes) < _LEAST_NODES or any(True for n in nodes for _ in walk.subgraphs(n)):
            continue
        part = _Part(group, nodes, constants, before)
        key = part.structure()
        if key not in functions:
            functions[key] = part.function(taken.unique(f"{group.forward.op_type}Gradient"), model)
        part.replace(graph, functions[key], names)
    for function in functions.values():
        model.functions[function.identifier()] = function
    if functions:
        model.opset_imports[DOMAIN] = 1
        model.ir_version = max(model.ir_version, 8)  # the first with functions
        edit.remove_dead_nodes(graph, emitted)
    return len(functions)


@dataclasses.dataclass
class _Part:
    """The nodes of one group that are still needed, with their inputs and outputs."""

    group: Group
    nodes: list[ir.Node]
    constants: set[Value]
    before: dict[Value, Value]

    def __post_init__(self) -> None:
        inside = set(self.nodes)
        read = dict.fromkeys(v for n in self.nodes for v in n.inputs if v is not None and v.producer() not in inside)
        self.fixed = [v for v in read if v in self.constants]
        self.inputs = [v for v in read if v not in self.constants]
        self.outputs = [
            v
            for n in self.nodes
            for v in n.outputs
            if v.is_graph_output() or any(u not in inside for u in v.consumers())
        ]

    def structure(self) -> tuple[Any, ...]:
        """Return a key that is equal for two parts that can share a function."""
        places: dict[Value | None, Any] = {None: None}
        places |= {v: ("input", i) for i, v in enumerate(self.inputs)}
        places |= {v: _tensor_key(v) for v in self.fixed}
        described = []
        for index, node in enumerate(self.nodes):
            attributes = tuple(sorted((k, _attribute_key(a)) for k, a in node.attributes.items()))
            read = tuple(places[v] for v in node.inputs)
            described.append((node.domain, node.op_type, node.overload, attributes, read, len(node.outputs)))
            places |= {v: (index, position) for position, v in enumerate(node.outputs)}
        return (self.group.forward.op_type, tuple(described), tuple(places[v] for v in self.outputs))

    def function(self, name: str, model: ir.Model) -> ir.Function:
        """Return a function of these nodes."""
        local, called = Names(), self.group.names()
        values: dict[Value, Value] = {}
        for value in self.inputs:
            named = called.get(self.before.get(value, value))
            values[value] = ir.Value(name=local.unique(named or _plain_name(value.name or "x")))
        makers = [n for v in self.fixed if (n := v.producer()) is not None]
        copies = edit.copy_nodes([*makers, *self.nodes], values)
        given = {values[v]: called[v] for v in self.outputs if v in called}
        for value, wanted in given.items():
            value.name = local.unique(wanted)
        _name_locally(copies, given, local)
        domains = {n.domain for n in copies}
        imports = {d: v for d, v in model.opset_imports.items() if d in domains}
        body = ir.Graph(
            [values[v] for v in self.inputs], [values[v] for v in self.outputs], nodes=copies, opset_imports=imports,
            name=name,
        )  # fmt: skip
        return ir.Function(DOMAIN, name, graph=body, attributes=[])

    def replace(self, graph: ir.Graph, function: ir.Function, names: Names) -> None:
        """Replace the nodes by a call of the function; values keep their names."""
        forward = self.group.forward
        name = names.unique(f"grad/{forward.name or forward.outputs[0].name}")
        call = ir.Node(DOMAIN, function.name, self.inputs, num_outputs=len(self.outputs), name=name)
        graph.insert_before(self.nodes[0], call)
        for old, new in zip(self.outputs, call.outputs, strict=True):
            edit.take_place(old, new)
            self.before[new] = old
        graph.remove(self.nodes, safe=True)


def _name_locally(nodes: Iterable[ir.Node], named: Container[Value], local: Names) -> None:
    """Give nodes and values, except those `named` already, short names; forget types, as a function fits any shapes."""
    for node in nodes:
        node.name = _plain_name(node.name or node.op_type)
        for output in node.outputs:
            output.type = output.shape = None
            if output.name and output not in named:
                output.name = local.unique(node.name)


def _plain_name(name: str) -> str:
    """Return the last part of a name: `Mul_2` of `grad/conv1/Mul_2:out`."""
    return name.rpartition("/")[2].partition(":")[0]


def _tensor_key(value: Value) -> tuple[Any, ...]:
    tensor = value.const_value
    assert tensor is not None
    return ("constant", *_array_key(tensor))


def _array_key(tensor: ir.TensorProtocol) -> tuple[Any, ...]:
    return (tensor.dtype, tuple(tensor.shape), tensor.tobytes())


def _attribute_key(attribute: ir.Attr) -> tuple[Any, ...]:
    if attribute.type == ir.AttributeType.TENSOR:
        return (int(attribute.type), *_array_key(attribute.as_tensor()))
    value = attribute.value
    return (int(attribute.type), tuple(value) if isinstance(value, list | tuple) else value)
