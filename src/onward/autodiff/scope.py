"""The scope of a Gradient node: the values it may name, and what it shares with the other Gradient nodes there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from onward.arguments import did_you_mean, nearest
from onward.autodiff import function_bodies as expand
from onward.autodiff.emit import Cache, Emitter
from onward.errors import Diagnostic
from onward.graph import walk
from onward.graph.builder import Names, Value
from onward.model.training_model import FLOAT_TYPES

D100 = "D100"
D101 = "D101"


@dataclasses.dataclass
class Scope:
    """The graphs whose values can be named, outermost first, with their names, functions and caches."""

    graphs: list[walk.GraphLike]
    opset: int
    names: Names
    functions: expand.Functions
    infer: Callable[[], object]
    cache: Cache = dataclasses.field(default_factory=Cache)
    index: dict[str, Value] = dataclasses.field(default_factory=dict)
    emitted: list[ir.Node] = dataclasses.field(default_factory=list)
    pending: set[ir.Node] = dataclasses.field(default_factory=set)  # nodes whose outputs do not exist yet

    def inner(self, graph: ir.Graph) -> Scope:
        """Return the scope inside a subgraph."""
        return dataclasses.replace(self, graphs=[*self.graphs, graph], cache=Cache(self.cache), index={}, emitted=[])

    def emitter(self) -> Emitter:
        """Return a builder that reuses equal nodes emitted in this scope before."""
        return Emitter(self.opset, self.names, self.cache)

    def order(self) -> Iterator[ir.Node]:
        """Yield the nodes of all graphs in topological order."""
        for graph in self.graphs:
            yield from graph

    def expand_calls(self, wanted: Callable[[], Iterable[ir.Node]]) -> bool:
        """Replace calls without a gradient rule among `wanted()` by their bodies, until none is left.

        Calls in subgraphs of the wanted nodes are replaced too. Return whether there were any calls.
        """
        changed = False
        while True:
            calls = [
                (call, body)
                for node in wanted()
                for call in (node, *(n for g in walk.subgraphs(node) for n in walk.all_nodes(g)))
                if expand.needs_expansion(call, self.opset)
                and (body := expand.body_of(call, self.functions, self.opset)) is not None
            ]
            for call, body in calls:
                expand.inline_call(call, body, self.names)
                changed = True
            if not calls:
                return changed

    def find(self, name: str) -> Value | None:
        """Return the value called `name`, or None."""
        value = self.index.get(name)
        if value is None or value.name != name or not self._is_here(value):
            self.index = {v.name: v for v in self._values() if v.name}
            value = self.index.get(name)
        return value

    def _is_here(self, value: Value) -> bool:
        node = value.producer()
        return node is None or node.graph is not None

    def _values(self) -> Iterator[Value]:
        for graph in self.graphs:
            yield from graph.inputs
            if isinstance(graph, ir.Graph):
                yield from graph.initializers.values()
            for node in graph:
                yield from node.outputs

    def resolve(self, name: str, what: str, place: str = "", *, floating: bool = True) -> Value | Diagnostic:
        """Return the value called `name`, or a diagnostic in which `what` says who names it."""
        value = self.find(name)
        if value is None:
            reach = [v.name for v in self._values() if v.name]
            return Diagnostic(
                D100,
                f"{what} names `{name}`, which is not a tensor of the graph",
                place=place,
                needed="an input, an initializer or a node's output",
                hint=did_you_mean(nearest(name, reach)) or f"there are: {', '.join(reach[:20])}",
            )
        if value.producer() in self.pending:
            return Diagnostic(
                D100,
                f"{what} names `{name}`, which is computed only after it",
                place=place,
                needed="a tensor that is defined before the gradient is taken",
                hint="move the node that computes it before this one",
            )
        tensor = isinstance(value.type, ir.TensorType)
        if floating and value.type is not None and not (tensor and value.dtype in FLOAT_TYPES):
            return Diagnostic(
                D101,
                f"{what} names `{name}`, which is not a floating-point tensor",
                place=place,
                found=describe(value),
                needed="a tensor of float16, bfloat16, float or double",
            )
        return value


def describe(value: Value) -> str:
    """Return the type as the standard writes it: tensor(int64), seq(tensor(float)) ...

    >>> describe(ir.val("n", dtype=ir.DataType.INT64, shape=()))
    'tensor(int64)'
    """

    def text(of: ir.TypeProtocol | None) -> str:
        if isinstance(of, ir.SequenceType | ir.OptionalType):
            return f"{'seq' if isinstance(of, ir.SequenceType) else 'optional'}({text(of.elem_type)})"
        return "unknown" if of is None else f"tensor({of.dtype.name.lower()})"

    return text(value.type)
