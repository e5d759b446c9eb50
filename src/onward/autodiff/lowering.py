"""`Gradient` nodes become plain operators, wherever they stand: in the graph, in algorithms, subgraphs and functions.

Semantics (docs/how_it_works.md, spec §2): `xs` and `zs` cut the graph; a node's inputs may differ from the tensors it
names, then the slice between cut and `y` is evaluated again at that point; `y` may itself be a gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onward.autodiff import expand
from onward.autodiff.engine import Backward, Slice, find_slice, zeros
from onward.errors import Diagnostic, NotDifferentiable, define
from onward.model import graphs
from onward.model.builder import Names, Value
from onward.model.schema import TRAINING_DOMAIN
from onward.model.training_model import FLOAT_TYPES

D100 = define(
    "D100",
    "a name that is not a tensor of the graph",
    why="The gradient names a tensor that does not exist, or is not defined before the gradient is taken.",
    fix="Use a name of an input, an initializer or a node's output that comes earlier in the graph.",
)
D101 = define(
    "D101",
    "not a floating-point tensor",
    why="Only floating-point tensors have a gradient.",
    fix="Differentiate a floating-point tensor by floating-point tensors.",
)
D102 = define(
    "D102",
    "the Gradient node's inputs do not fit its xs and zs",
    why="A Gradient node takes one input for each name in xs, then one for each in zs.",
    fix="Give the node exactly len(xs) + len(zs) inputs and at most len(xs) outputs.",
)


@dataclasses.dataclass
class Scope:
    """Where a Gradient node stands: the graphs whose values it may name, outermost first."""

    graphs: list[graphs.GraphLike]
    opset: int
    names: Names
    functions: expand.Functions
    infer: Callable[[], None]

    def inner(self, graph: ir.Graph) -> Scope:
        return dataclasses.replace(self, graphs=[*self.graphs, graph])

    def order(self) -> Iterator[ir.Node]:
        for graph in self.graphs:
            yield from graph

    def find(self, name: str) -> Value | None:
        for graph in reversed(self.graphs):
            for value in graph.inputs:
                if value.name == name:
                    return value
            if isinstance(graph, ir.Graph) and name in graph.initializers:
                return graph.initializers[name]
            for node in graph:
                for value in node.outputs:
                    if value.name == name:
                        return value
        return None

    def names_in_reach(self) -> list[str]:
        found = []
        for graph in self.graphs:
            found += [v.name for v in graph.inputs if v.name]
            found += list(graph.initializers) if isinstance(graph, ir.Graph) else []
            found += [v.name for n in graph for v in n.outputs if v.name]
        return found


def is_gradient(node: ir.Node) -> bool:
    return node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN


def lower_model(model: ir.Model, algorithms: Sequence[ir.Graph] = ()) -> int:
    """Replace every Gradient node of `model`, its functions and the given algorithms; return how many.

    Changes the graphs in place.
    """
    names = Names(graphs.all_names(model.graph))
    for algorithm in algorithms:
        names.taken |= graphs.all_names(algorithm)
    count = 0
    for function in model.functions.values():
        if _has_gradient(function):
            opset = function.opset_imports.get("", model.opset_imports.get("", 1))
            own = Names(graphs.all_names(function))
            count += _lower(function, Scope([function], opset, own, model.functions, lambda: None))
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    if _has_gradient(model.graph):
        graphs.infer_shapes(model)
        scope = Scope([model.graph], opset, names, model.functions, lambda: graphs.infer_shapes(model))
        count += _lower(model.graph, scope)
    for algorithm in algorithms:
        if _has_gradient(algorithm):
            infer = _inference(model, algorithm)
            infer()
            scope = Scope([model.graph, algorithm], opset, names, model.functions, infer)
            count += _lower(algorithm, scope)
    return count


def _inference(model: ir.Model, algorithm: ir.Graph) -> Callable[[], None]:
    return lambda: graphs.infer_shapes(model, algorithm)


def _has_gradient(graph: graphs.GraphLike) -> bool:
    return any(is_gradient(n) or any(_has_gradient(s) for s in graphs.subgraphs(n)) for n in graph)


def _lower(graph: graphs.GraphLike, scope: Scope) -> int:
    count = 0
    for node in list(graph):
        for sub in graphs.subgraphs(node):
            count += _lower(sub, scope.inner(sub))
        if is_gradient(node):
            lower_gradient(node, scope)
            count += 1
    return count


def lower_gradient(node: ir.Node, scope: Scope) -> None:
    """Replace one Gradient node by plain operators, in its graph."""
    xs, zs, y, points = _read(node, scope)
    graph = node.graph
    assert graph is not None
    cut = [*xs, *zs]
    if any(point is not named for point, named in zip(points, cut, strict=True)):
        again = dict(zip(cut, points, strict=True))
        slice_nodes = [n for n in scope.order() if n in graphs.ancestors([y], stop=cut)]
        copies = graphs.copy_nodes(slice_nodes, again, names=scope.names, prefix=f"{node.name or 'Gradient'}/")
        graph.insert_before(node, copies)
        y, xs, zs = again.get(y, y), points[: len(xs)], points[len(xs) :]
    part = prepare_slice(y, xs, zs, scope)
    backward = Backward(scope.opset, scope.names)
    grads = backward.run(y, xs, part)
    finish(node, xs, grads, backward, graph)


def prepare_slice(y: Value, xs: Sequence[Value], zs: Sequence[Value], scope: Scope) -> Slice:
    """Return the slice to differentiate, function calls in it expanded and shapes known as far as they can be."""
    inferred = False
    while True:
        part = find_slice(y, xs, zs, scope.order())
        expanded = False
        for node in part.nodes:
            if expand.needs_expansion(node, scope.opset):
                body = expand.body_of(node, scope.functions, scope.opset)
                if body is not None:
                    if y in node.outputs:
                        index = node.outputs.index(y)
                        name = y.name
                        made = expand.inline_call(node, body, scope.names)
                        y = next(v for n in made for v in n.outputs if v.name == name)
                        assert index is not None
                    else:
                        expand.inline_call(node, body, scope.names)
                    expanded = True
        if expanded:
            inferred = False
            continue
        if not inferred and any(v.shape is None or v.type is None for n in part.nodes for v in n.outputs):
            scope.infer()
            inferred = True
            continue
        return part


def finish(
    node: ir.Node, xs: Sequence[Value], grads: Sequence[Value | None], backward: Backward, graph: graphs.GraphLike
) -> None:
    """Put the backward nodes in the place of `node` and let its outputs be the gradients."""
    op = backward.op
    taken: set[Value] = set()
    replacements: list[tuple[Value, Value]] = []
    for output, x, grad in zip(node.outputs, xs, grads, strict=False):
        if not output.name:
            continue
        if grad is None:
            grad = zeros(op, x)
        if grad in taken or grad.producer() not in op.nodes or grad.producer().op_type == "Constant":  # type: ignore[union-attr]
            grad = op.Identity(grad)
        taken.add(grad)
        grad.type, grad.shape = x.type, x.shape
        replacements.append((output, grad))
    graph.insert_before(node, op.nodes)
    for output, grad in replacements:
        name = output.name
        output.replace_all_uses_with(grad, replace_graph_outputs=True)
        output.name = None
        grad.name = name
    graph.remove(node, safe=True)
    graphs.remove_dead_nodes(graph, op.nodes)


def _read(node: ir.Node, scope: Scope) -> tuple[list[Value], list[Value], Value, list[Value]]:
    """Return xs, zs, y as values and the node's inputs, or raise with everything that is wrong."""
    place = f"node `{node.name or 'Gradient'}` (Gradient)"
    problems: list[Diagnostic] = []

    def resolve(name: str, what: str) -> Value | None:
        value = scope.find(name)
        if value is None:
            problems.append(_unknown(name, what, place, scope))
        elif value.dtype not in FLOAT_TYPES and what != "zs" and value.dtype is not None:
            problems.append(
                Diagnostic(
                    D101,
                    f"{what} names `{name}`, which is not a floating-point tensor",
                    place=place,
                    found=str(value.dtype),
                    needed="float16, bfloat16, float or double",
                )
            )
        return value

    x_names = list(node.attributes["xs"].as_strings()) if "xs" in node.attributes else []
    z_names = list(node.attributes["zs"].as_strings()) if "zs" in node.attributes else []
    y_name = node.attributes["y"].as_string() if "y" in node.attributes else ""
    xs = [resolve(n, "xs") for n in x_names]
    zs = [resolve(n, "zs") for n in z_names]
    y = resolve(y_name, "y")
    if len(node.inputs) != len(xs) + len(zs) or any(v is None for v in node.inputs) or len(node.outputs) > len(xs):
        problems.append(
            Diagnostic(
                D102,
                "the inputs and outputs of the Gradient node do not fit its xs and zs",
                place=place,
                found=f"{len(node.inputs)} inputs, {len(node.outputs)} outputs, {len(xs)} xs, {len(zs)} zs",
                needed=f"{len(xs) + len(zs)} inputs and at most {len(xs)} outputs",
            )
        )
    if problems:
        raise NotDifferentiable(problems)
    assert y is not None
    return (
        [v for v in xs if v is not None],
        [v for v in zs if v is not None],
        y,
        [v for v in node.inputs if v is not None],
    )


def _unknown(name: str, what: str, place: str, scope: Scope) -> Diagnostic:
    import difflib

    near = difflib.get_close_matches(name, scope.names_in_reach(), n=3, cutoff=0.5)
    return Diagnostic(
        D100,
        f"{what} names `{name}`, which is no tensor of the graph",
        place=place,
        needed="an input, an initializer or a node's output",
        hint=f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else "",
    )
