"""Replacement of `Gradient` nodes by plain operators, in the graph, in algorithms, subgraphs and functions.

Semantics (docs/how_it_works.md, spec §2): `xs` and `zs` cut the graph. If a node's inputs differ from the tensors it
names, the slice between the cut and `y` is evaluated again at that point. `y` may itself be a gradient.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onward.autodiff import function_bodies as expand
from onward.autodiff.engine import Backward, Slice, find_slice, zeros
from onward.autodiff.other_point import evaluate_again
from onward.autodiff.rules.quantization import straight_through
from onward.autodiff.scope import Scope
from onward.autodiff.shapes import infer_bodies
from onward.errors import Diagnostic, NotDifferentiable, named_node
from onward.graph import edit, shapes, walk
from onward.graph.builder import Names, Value
from onward.graph.integer_products import to_float_products
from onward.graph.schema import TRAINING_DOMAIN
from onward.model.roles import is_straight_through
from onward.model.training_model import is_gradient

D102 = "D102"
D103 = "D103"
D104 = "D104"


def lower_model(model: ir.Model, algorithms: Sequence[ir.Graph] = ()) -> int:
    """Replace every Gradient node of `model`, its functions and the given algorithms; return their number.

    Changes the graphs in place. A function that contains Gradient nodes is inlined where it is called, because the
    types are known there, and removed.
    """
    names = Names(walk.all_names(model.graph))
    for algorithm in algorithms:
        names.taken |= walk.all_names(algorithm)
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    _inline_gradient_functions(model, [model.graph, *algorithms], names)
    count = 0
    if _has_gradient(model.graph):
        shapes.infer_shapes(model)
        scope = Scope([model.graph], opset, names, model.functions, lambda: shapes.infer_shapes(model))
        count += _lower(model.graph, scope)
    for algorithm in algorithms:
        if _has_gradient(algorithm):
            infer = functools.partial(shapes.infer_shapes, model, algorithm)
            infer()
            scope = Scope([model.graph, algorithm], opset, names, model.functions, infer)
            count += _lower(algorithm, scope)
    if count and not any(is_gradient(n) for g in (model.graph, *algorithms) for n in walk.all_nodes(g)):
        _drop_import(model, algorithms)
    return count


def _drop_import(model: ir.Model, algorithms: Sequence[ir.Graph]) -> None:
    """Remove the import of the training domain if nothing uses it: a stock runtime may not know the domain."""
    everything: list[walk.GraphLike] = [model.graph, *algorithms, *model.functions.values()]
    if all(n.domain != TRAINING_DOMAIN for g in everything for n in walk.all_nodes(g)):
        model.opset_imports.pop(TRAINING_DOMAIN, None)


def _has_gradient(graph: walk.GraphLike) -> bool:
    return any(is_gradient(n) for n in walk.all_nodes(graph))


def _inline_gradient_functions(model: ir.Model, callers: Sequence[ir.Graph], names: Names) -> None:
    """Inline the functions that contain a Gradient node, directly or through others, and remove them."""
    guilty = {key for key, function in model.functions.items() if _has_gradient(function)}

    def calls(graphs: Iterable[walk.GraphLike]) -> list[ir.Node]:
        return [n for g in graphs for n in walk.all_nodes(g) if (n.domain, n.op_type, n.overload) in guilty]

    while more := {k for k, function in model.functions.items() if calls([function])} - guilty:
        guilty |= more
    while found := calls(callers):
        for call in found:
            expand.inline_call(call, model.functions[call.domain, call.op_type, call.overload], names)
    for key in guilty:
        del model.functions[key]


def _lower(graph: walk.GraphLike, scope: Scope) -> int:
    count = 0
    nodes = list(graph)
    scope.pending.update(nodes)
    for node in nodes:
        for sub in walk.subgraphs(node):
            count += _lower(sub, scope.inner(sub))
        if is_gradient(node):
            lower_gradient(node, scope)
            count += 1
        scope.pending.discard(node)
    edit.remove_dead_nodes(graph, scope.emitted)
    return count


def lower_gradient(node: ir.Node, scope: Scope) -> None:
    """Replace one Gradient node by plain operators, in its graph."""
    xs, zs, y, points = _read(node, scope)
    graph = node.graph
    assert graph is not None
    moved = {named: point for named, point in zip([*xs, *zs], points, strict=True) if point is not named}
    # A copy of each point stands for it while the derivative is taken: the slice may read the same tensor itself, or
    # one tensor may stand for two of the names.
    copies = {named: _copy_of(point, named, scope) for named, point in moved.items()}
    if moved:
        y = _evaluate_at_points(node, y, copies, [v for v in [*xs, *zs] if v not in moved], scope)
        xs, zs = ([copies[v].outputs[0] if v in copies else v for v in values] for values in (xs, zs))
    outputs = [(output, x) for output, x in zip(node.outputs, xs, strict=False) if output.name]
    wanted = [x for _, x in outputs]
    y, wanted, part = prepare_slice(y, wanted, [*zs, *(x for x in xs if x not in wanted)], scope)
    backward = Backward(scope.emitter())
    with straight_through() if is_straight_through(node) else contextlib.nullcontext():
        grads = backward.run(y, wanted, part)
    _finish(node, [output for output, _ in outputs], wanted, grads, backward, graph, scope)
    for named, copy in copies.items():
        copy.outputs[0].replace_all_uses_with(moved[named])
        graph.remove(copy, safe=True)


def _evaluate_at_points(
    node: ir.Node, y: Value, copies: Mapping[Value, ir.Node], fixed: list[Value], scope: Scope
) -> Value:
    """Return `y` computed from the copies instead of the values they stand for; insert the nodes before `node`."""
    assert node.graph is not None
    node.graph.insert_before(node, list(copies.values()))
    points = {named: copy.outputs[0] for named, copy in copies.items()}
    nodes, y = evaluate_again(y, points, fixed, scope, f"{node.name or y.name}/")
    node.graph.insert_before(node, nodes)
    scope.emitted += nodes
    return y


def _copy_of(point: Value, named: Value, scope: Scope) -> ir.Node:
    copy = ir.Node("", "Identity", [point], num_outputs=1, name=scope.names.unique(f"{named.name}/point"))
    copy.outputs[0].name = scope.names.unique(f"{named.name}/point:out")
    copy.outputs[0].type, copy.outputs[0].shape = point.type or named.type, point.shape
    return copy


def prepare_slice(y: Value, xs: Sequence[Value], zs: Sequence[Value], scope: Scope) -> tuple[Value, list[Value], Slice]:
    """Return `y`, `xs` and the slice to differentiate, with function calls expanded and shapes inferred.

    Where an expanded call produced `y` or one of `xs`, the value returned is the new one of the same name.
    """
    names = [v.name or "" for v in (y, *xs)]
    part = Slice([], set())

    def wanted() -> list[ir.Node]:
        nonlocal y, xs, part
        y, *xs = (scope.find(n) or v for n, v in zip(names, (y, *xs), strict=True))
        part = find_slice(y, xs, zs, scope.order())
        return part.nodes

    changed = scope.expand_calls(wanted)  # perhaps in a subgraph, which the slice does not show
    if to_float_products(part.nodes, scope.opset, scope.names):
        wanted()
        changed = True
    if changed or any(v.name and (v.type is None or v.shape is None) for n in part.nodes for v in n.outputs):
        scope.infer()
    infer_bodies(part.nodes, scope.opset)
    return y, list(xs), part


def _finish(
    node: ir.Node,
    outputs: Sequence[Value],
    xs: Sequence[Value],
    grads: Sequence[Value | None],
    backward: Backward,
    graph: walk.GraphLike,
    scope: Scope,
) -> None:
    """Replace `node` by the backward nodes, and its outputs by the gradients."""
    op = backward.op
    results = [g if g is not None else zeros(op, x) for g, x in zip(grads, xs, strict=True)]
    made = set(op.nodes)
    finals: dict[Value, None] = {}
    for found in results:
        producer = found.producer()
        if found in finals or producer not in made or producer.op_type == "Constant":
            copy = ir.Node("", "Identity", [found], num_outputs=1, name=scope.names.unique("grad/Identity"))
            op.nodes.append(copy)
            found = copy.outputs[0]
        finals[found] = None
    graph.insert_before(node, op.nodes)
    edit.take_places(dict(zip(outputs, finals, strict=True)))
    for x, final in zip(xs, finals, strict=True):
        final.type, final.shape = x.type, x.shape
    edit.set_inputs(node, [])
    graph.remove(node, safe=True)
    scope.emitted += op.nodes


def _read(node: ir.Node, scope: Scope) -> tuple[list[Value], list[Value], Value, list[Value]]:
    """Return xs, zs and y as values, and the node's inputs; raise NotDifferentiable with all that is wrong."""
    place = named_node(node) + " (Gradient)" * bool(node.name)
    problems: list[Diagnostic] = []

    def resolve(name: str, what: str, floating: bool = True) -> Value | None:
        found = scope.resolve(name, what, place, floating=floating)
        if isinstance(found, Diagnostic):
            problems.append(found)
            return None
        return found

    x_names, z_names = (list(node.attributes[k].as_strings()) if k in node.attributes else [] for k in ("xs", "zs"))
    xs = [v for n in x_names if (v := resolve(n, "xs")) is not None]
    zs = [v for n in z_names if (v := resolve(n, "zs", floating=False)) is not None]
    y = resolve(node.attributes["y"].as_string() if "y" in node.attributes else "", "y")
    count = len(x_names) + len(z_names)
    inputs = [v for v in node.inputs if v is not None]
    if len(inputs) != count or len(node.inputs) != count or len(node.outputs) > len(x_names):
        text = "the inputs and outputs of the Gradient node do not fit its xs and zs"
        found = f"{len(inputs)} inputs, {len(node.outputs)} outputs, {len(x_names)} xs, {len(z_names)} zs"
        needed = f"{count} inputs and at most {len(x_names)} outputs"
        problems.append(Diagnostic(D102, text, place=place, found=found, needed=needed))
    if not problems:
        problems += _type_problems([*xs, *zs], inputs, place)
        problems += _dependence_problems([*xs, *zs], place)
    if problems:
        raise NotDifferentiable(problems)
    assert y is not None
    return xs, zs, y, inputs


def _type_problems(named: Sequence[Value], points: Sequence[Value], place: str) -> list[Diagnostic]:
    return [
        Diagnostic(
            D104,
            f"the input `{point.name}` stands for `{name.name}` but has another type",
            place=place,
            found=str(point.type),
            needed=str(name.type),
        )
        for name, point in zip(named, points, strict=True)
        if name.type is not None and point.type is not None and name.type != point.type
    ]


def _dependence_problems(cut: Sequence[Value], place: str) -> list[Diagnostic]:
    """Return one problem for each member of the cut that is computed from another, and one for repeated names."""
    problems = []
    twice = [v for v, times in Counter(cut).items() if times > 1]
    if twice:
        found = ", ".join(sorted(f"`{v.name}`" for v in twice))
        text = "xs and zs name a tensor twice"
        problems.append(Diagnostic(D103, text, place=place, found=found, needed="each tensor once"))
    for value in dict.fromkeys(cut):
        behind = {v for n in walk.ancestors([value]) for v in walk.reads(n)}
        sources = walk.sequence_of([v for v in dict.fromkeys(cut) if v in behind and v is not value])
        if sources:
            problems.append(
                Diagnostic(
                    D103,
                    "xs and zs are not independent",
                    place=place,
                    found=f"`{value.name}` is computed from {sources}",
                    needed="a cut of the graph in which no member is computed from another",
                    hint=f"leave out `{value.name}`, or leave out {sources}",
                )
            )
    return problems
