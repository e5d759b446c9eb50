"""Views of the graphs of a model for the checks: names in scope, in order, exactly as in the file.

The checker works on the unchanged `ModelProto`. onnx-ir would give every value one producer and every name one meaning,
and so hide the errors that the checks look for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import onnx

from onward.check.report import quote
from onward.errors import named_nodes
from onward.graph.schema import TRAINING_DOMAIN, newest_opset

Graph = Any  # a GraphProto, or a FunctionProto where `View.is_function`
Node = Any  # a NodeProto
BEFORE_ALL = -1  # the position of graph inputs and initializers
GRAPH, GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
# Domains whose operators the onnx package defines completely: an unknown operator there does not exist.
OFFICIAL_DOMAINS = ("", "ai.onnx.ml", TRAINING_DOMAIN, "ai.onnx.preview")

FunctionKey = tuple[str, str, str]


def domain_of(name: str) -> str:
    """Return the canonical spelling of an operator domain: `ai.onnx` is the default domain `""`."""
    return "" if name == "ai.onnx" else name


def domain_text(name: str) -> str:
    return quote(name or "ai.onnx")


def function_text(key: FunctionKey) -> str:
    domain, name, overload = key
    return quote(f"{domain}::{name}" + (f":{overload}" if overload else ""))


def is_gradient(node: Node) -> bool:
    return bool(node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN)


def strings(node: Node, name: str) -> list[str] | None:
    """Return a STRING or STRINGS attribute as a list, or None if the node has no such attribute of these types."""
    for attribute in node.attribute:
        if attribute.name == name and not attribute.ref_attr_name:
            if attribute.type == onnx.AttributeProto.STRINGS:
                return [s.decode("utf-8", "backslashreplace") for s in attribute.strings]
            if attribute.type == onnx.AttributeProto.STRING:
                return [attribute.s.decode("utf-8", "backslashreplace")]
    return None


@dataclasses.dataclass(frozen=True)
class Clash:
    """One name given twice in the same scope."""

    name: str
    first: str
    second: str
    position: int  # of the second: a node, or BEFORE_ALL


class View:
    """One graph or function body: its nodes, and the meaning of each name at each node."""

    def __init__(
        self,
        proto: Graph,
        place: str,
        kind: str,
        opsets: dict[str, int],
        *,
        parent: View | None = None,
        parent_position: int = 0,
        base: View | None = None,
        entry: int | None = None,
    ) -> None:
        self.proto = proto
        self.place = place
        self.kind = kind  # graph, algorithm, initialization, function or subgraph
        self.opsets = opsets
        self.parent = parent  # the graph around a subgraph …
        self.parent_position = parent_position  # … and the node in it that holds this one
        self.base = base  # for an algorithm: the inference graph that it continues
        self.entry = entry  # the training_info entry this belongs to
        self.nodes: list[Node] = list(proto.node)
        self.children: list[View] = []
        self.children_of: dict[int, list[View]] = {}
        self.defined: dict[str, int] = {}
        self.clashes: list[Clash] = []
        self._read(proto)

    @property
    def is_function(self) -> bool:
        return self.kind == "function"

    def _read(self, proto: Graph) -> None:
        kinds: dict[str, str] = {}

        def define(name: str, kind: str, position: int) -> None:
            if not name:
                return
            if name in kinds:
                self.clashes.append(Clash(name, kinds[name], kind, position))
                return
            kinds[name] = kind
            self.defined[name] = position

        if self.is_function:
            self.inputs: list[str] = list(proto.input)
            self.outputs: list[str] = list(proto.output)
            self.initializers: dict[str, Any] = {}
            self.sparse: dict[str, Any] = {}
        else:
            self.inputs = [v.name for v in proto.input]
            self.outputs = [v.name for v in proto.output]
            self.initializers = {t.name: t for t in proto.initializer}
            self.sparse = {t.values.name: t for t in proto.sparse_initializer}
        for name in self.inputs:
            define(name, "input", BEFORE_ALL)
        if not self.is_function:
            own_inputs = set(self.inputs)
            tensors = [(t.name, "initializer") for t in proto.initializer]
            tensors += [(t.values.name, "sparse initializer") for t in proto.sparse_initializer]
            for name, kind in tensors:
                if name in own_inputs and kinds[name] == "input":
                    kinds[name] = "input with a default"  # a default value for the input of the same name
                else:
                    define(name, kind, BEFORE_ALL)
        for position, node in enumerate(self.nodes):
            for name in node.output:
                define(name, "node output", position)
        self.kinds = kinds

    def lookup(self, name: str, before: int) -> tuple[View, int] | None:
        """Return the view and position that define `name` for a reader at node `before`, or None."""
        view: View | None = self
        while view is not None:
            position = view.defined.get(name)
            if position is not None and position < before:
                return view, position
            if view.base is not None:
                before = len(view.base.nodes)
                view = view.base
            else:
                before, view = view.parent_position, view.parent
        return None

    def defines(self, name: str) -> bool:
        """Return whether this graph, or one around it, defines this name anywhere."""
        view: View | None = self
        while view is not None:
            if name in view.defined:
                return True
            view = view.base or view.parent
        return False

    def visible(self) -> Iterator[str]:
        """Yield every name of this graph and of those around it, nearest first."""
        view: View | None = self
        while view is not None:
            yield from view.defined
            view = view.base or view.parent

    def around(self) -> View | None:
        return self.base or self.parent

    def node_place(self, position: int) -> str:
        node = self.nodes[position]
        if not node.name:
            return f"{self.place}, {self._named[position]}"
        return f'{self.place}, node {position} "{quote(node.name)[1:-1]}" ({node.op_type or "?"})'

    @functools.cached_property
    def _named(self) -> list[str]:
        return named_nodes(self.nodes)

    def walk(self) -> Iterator[View]:
        """Yield this view and every subgraph in it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def root(self) -> View:
        view = self
        while view.parent is not None:
            view = view.parent
        return view


class Model:
    """A `ModelProto` with a `View` of every graph in it."""

    def __init__(self, proto: onnx.ModelProto, folder: str | None = None) -> None:
        self.proto = proto
        self.folder = folder  # where external data lives, if the model came from a file
        self.opsets = read_opsets(proto.opset_import)
        self.functions: dict[FunctionKey, Any] = {}
        self.overloads: dict[tuple[str, str], list[str]] = {}
        for function in proto.functions:
            key = function_key(function)
            self.functions.setdefault(key, function)
            self.overloads.setdefault(key[:2], []).append(key[2])
        self.function_names: dict[str, list[str]] = {}  # by domain
        for domain, name in self.overloads:
            self.function_names.setdefault(domain, []).append(name)
        self.graph = self._view(proto.graph, "graph", "graph", self.opsets)
        self.algorithms: list[View | None] = []
        self.initializations: list[View | None] = []
        for index, info in enumerate(proto.training_info):
            place = f"training_info[{index}]"
            self.algorithms.append(
                self._view(info.algorithm, f"{place}.algorithm", "algorithm", self.opsets, base=self.graph, entry=index)
                if info.HasField("algorithm")
                else None
            )
            self.initializations.append(
                self._view(info.initialization, f"{place}.initialization", "initialization", self.opsets, entry=index)
                if info.HasField("initialization")
                else None
            )
        self.bodies = [
            self._view(f, f"functions[{i}] {function_text(function_key(f))}", "function", read_opsets(f.opset_import))
            for i, f in enumerate(proto.functions)
        ]
        # Nodes already reported as broken: consequences are not reported again.
        self.broken: set[tuple[int, int]] = set()
        # Nodes with unknown operators: their outputs have no known type.
        self.foreign: set[tuple[int, int]] = set()
        self.ambiguous: set[str] = set()  # names with two meanings: their dependencies are unknown
        self.misfits: dict[int, set[str]] = {}  # by id of the view: initializers that do not match their input
        self.expandable = True  # no recursion and no excessive expansion: functions can be expanded

    def _view(self, proto: Graph, place: str, kind: str, opsets: dict[str, int], **around: Any) -> View:
        view = View(proto, place, kind, opsets, **around)
        for position, node in enumerate(view.nodes):
            for attribute in node.attribute:
                graphs = [attribute.g] if attribute.type == GRAPH else attribute.graphs
                for k, graph in enumerate(graphs if attribute.type in (GRAPH, GRAPHS) else ()):
                    label = attribute.name if attribute.type == GRAPH else f"{attribute.name}[{k}]"
                    inner = f"{view.node_place(position)}.{label}"
                    child = self._view(
                        graph, inner, "subgraph", opsets, parent=view, parent_position=position, entry=view.entry
                    )
                    view.children.append(child)
                    view.children_of.setdefault(position, []).append(child)
        return view

    def tops(self) -> Iterator[View]:
        """Yield the top-level graphs: the inference graph, the training graphs, the function bodies."""
        yield self.graph
        for algorithm, initialization in zip(self.algorithms, self.initializations, strict=True):
            if initialization is not None:
                yield initialization
            if algorithm is not None:
                yield algorithm
        yield from self.bodies

    def views(self) -> Iterator[View]:
        """Yield every graph, with its subgraphs."""
        for top in self.tops():
            yield from top.walk()

    def mark_broken(self, view: View, position: int) -> None:
        self.broken.add((id(view), position))

    def is_broken(self, view: View, position: int) -> bool:
        return (id(view), position) in self.broken

    def mark_foreign(self, view: View, position: int) -> None:
        self.foreign.add((id(view), position))

    def is_foreign(self, view: View, position: int) -> bool:
        return (id(view), position) in self.foreign

    def callee(self, node: Node) -> FunctionKey | None:
        """Return the model-local function that `node` calls, or None if it is an operator."""
        key = (domain_of(node.domain), node.op_type, node.overload)
        return key if key in self.functions else None


def read_opsets(imports: Any) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in imports:
        opsets.setdefault(domain_of(entry.domain), entry.version)
    return opsets


def function_key(function: Any) -> FunctionKey:
    return domain_of(function.domain), function.name, function.overload


@functools.cache
def known_opset(domain: str, version: int) -> int:
    """Return `version`, limited to the versions of the installed onnx package."""
    return max(1, min(version, newest_opset(domain) if domain in OFFICIAL_DOMAINS else 2**30))


def is_empty(graph: Any) -> bool:
    """Return whether a GraphProto is empty, which means the same as its absence."""
    return not (graph.node or graph.input or graph.output or graph.initializer or graph.sparse_initializer)


def element_types(type_proto: Any) -> list[int]:
    """Return the element types of the tensors in a TypeProto, through sequences, optionals and maps."""
    found: list[int] = []
    while True:
        kind = type_proto.WhichOneof("value")
        if kind in ("tensor_type", "sparse_tensor_type"):
            return [*found, getattr(type_proto, kind).elem_type]
        if kind == "map_type":
            found.append(type_proto.map_type.key_type)
            type_proto = type_proto.map_type.value_type
        elif kind in ("sequence_type", "optional_type"):
            type_proto = getattr(type_proto, kind).elem_type
        else:
            return found
