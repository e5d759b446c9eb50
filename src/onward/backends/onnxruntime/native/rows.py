"""Let the native kernels compute what goes over rows several times in the plain graph.

These are layer normalisation and the gradients of Softmax and Relu, each in one pass; the sums over rows that are the
gradients of biases; and the cross entropy with its gradient, two dozen small operators in the plain graph.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.native.nodes import Pattern, match, native
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes
from onward.passes.recompute.settings import PREFIX


class UseNativeRows(Pass):
    """Replace what goes over rows, where the graph has it as the rules of autodiff write it."""

    def run(self, unit: Unit) -> bool:
        before = _normalizations(unit)
        changed = [
            rewrite_nodes(unit, "SoftmaxCrossEntropyLoss", _replace_loss),
            rewrite_nodes(unit, "LayerNormalization", _replace_normalization),
            _replace_twins(unit, before),
            rewrite_nodes(unit, "Softmax", _replace_softmax_gradient),
            rewrite_nodes(unit, "Relu", _replace_relu_gradient),
            rewrite_nodes(unit, "ReduceSum", _replace_sum),
        ]
        return any(changed)


# -- layer normalisation -----------------------------------------------------------------------------------------------


def _normalized(node: ir.Node) -> tuple[Value, Value, Value] | None:
    """Return X, scale and bias of a normalisation that the kernel can compute."""
    X, scale, bias = (*node.inputs, None)[:3]
    if X is None or scale is None or bias is None or len(node.outputs) != 3 or not _all_float(X, scale, bias):
        return None
    dims, rank = shapes.dims(X), len(shapes.dims(X) or ())
    if dims is None or node.attributes.get_int("axis", -1) % max(rank, 1) != rank - 1:
        return None
    if not isinstance(dims[-1], int) or not dims[-1] or any(shapes.dims(v) != (dims[-1],) for v in (scale, bias)):
        return None
    return X, scale, bias


def _forward(node: ir.Node, op: Builder, given: tuple[Value, Value, Value]) -> tuple[Value, ...]:
    bits = int(np.float32(node.attributes.get_float("epsilon", 1e-5)).view(np.int32))
    return native(op, "NormalizeRows", given, [bits], outputs=3)


def _normalizations(unit: Unit) -> set[str]:
    """Return the names of their results, which stay when a kernel takes over."""
    return {n.outputs[0].name or "" for n in unit.graph if n.op_type == "LayerNormalization"}


def _replace_twins(unit: Unit, before: set[str]) -> bool:
    """Replace what `recompute` computes twice in both places: a number that is computed again has the same bits."""
    gone = {name.removeprefix(PREFIX) for name in before - _normalizations(unit)}

    def replace(node: ir.Node, op: Builder) -> bool:
        given = _normalized(node) if (node.outputs[0].name or "").removeprefix(PREFIX) in gone else None
        if given is not None:
            edit.replace_node(node, op, _forward(node, op, given))
        return given is not None

    return rewrite_nodes(unit, "LayerNormalization", replace)


def _centered(X: Value, mean: Value) -> list[Value]:
    """Return what the gradient subtracts the mean from: X, or X computed again."""
    found = [u.node.inputs[0] for u in mean.uses() if u.idx == 1 and u.node.op_type == "Sub"]
    return list(dict.fromkeys(v for v in found if v is not None and _same_dims(v, X)))


def _replace_normalization(node: ir.Node, op: Builder) -> bool:
    given = _normalized(node)
    if given is None:
        return False
    scale, (_, mean, inverse) = given[1], node.outputs
    for end, X in [(u.node, X) for u in inverse.uses() if u.idx == 0 for X in _centered(given[0], mean)]:
        N: Pattern = ("Mul", ("Sub", X, mean), inverse)
        dN: Pattern = ("Mul", "dY", scale)
        product: Pattern = ("ReduceMean", ("Mul", dN, N))
        pattern: Pattern = ("Mul", inverse, ("Sub", ("Sub", dN, ("ReduceMean", dN)), ("Mul", N, product)))
        found: dict[str, Value] = {}
        if match(end.outputs[0], pattern, found) and _means_over_last(end) and _same_dims(found["dY"], X):
            break
    else:
        return False
    made = _forward(node, op, given)
    behind = Builder(op.opset, op.names, f"{end.name}/")
    _replace_gradient_of_rows(end.outputs[0], found["dY"], [X, scale, mean, inverse], behind)
    edit.replace_node(node, op, made)
    return True


def _replace_gradient_of_rows(dX: Value, dY: Value, inputs: list[Value], op: Builder) -> None:
    X, scale, mean, inverse = inputs
    N: Pattern = ("Mul", ("Sub", X, mean), inverse)
    products = [u.node.outputs[0] for u in dY.uses() if match(u.node.outputs[0], ("Mul", dY, N), {})]
    dscales = [s for p in products for s in _sums_of_rows(p)]
    dbiases = _sums_of_rows(dY)
    inside = {
        *(v.producer() for v in (*products, *dbiases)),
        *(u.node for u in dY.uses() if any(v is scale for v in u.node.inputs)),
    }
    terms: list[Value] = [dY]
    adds: dict[str, Value] = {}
    first = _first({u.node for u in dY.uses()})
    if match(dY, ("Add", "a", "b"), adds) and not dY.is_graph_output() and {u.node for u in dY.uses()} <= inside:
        a, b = adds["a"], adds["b"]
        if _same_dims(a, X) and _same_dims(b, X):
            terms = [a, b]
    name = "NormalizeRowsBack" if len(terms) == 1 else "NormalizeRowsAddedBack"
    made = native(op, name, [*inputs, *terms], [0], outputs=3)
    assert first.graph is not None
    first.graph.insert_before(first, op.nodes)
    edit.take_place(dX, made[0])
    for sums, value in ((dscales, made[1]), (dbiases, made[2])):
        _take_places(sums, value)


def _means_over_last(end: ir.Node) -> bool:
    """Return whether both means below the end of the gradient are over the last axis only, and keep it."""
    difference = end.inputs[1].producer()  # type: ignore[union-attr]
    assert difference is not None
    means = [_input_maker(_input_maker(difference, 0), 1), _input_maker(_input_maker(difference, 1), 1)]
    return all(_reduces_last(mean) for mean in means)


def _input_maker(node: ir.Node, index: int) -> ir.Node:
    value = node.inputs[index]
    maker = None if value is None else value.producer()
    assert maker is not None  # the pattern matched
    return maker


# -- Softmax and Relu --------------------------------------------------------------------------------------------------


def _replace_softmax_gradient(node: ir.Node, op: Builder) -> bool:
    """dX = Y * (dY - the sum of dY * Y over the row)"""
    Y = node.outputs[0]
    rank = len(shapes.dims(Y) or ())
    if not rank or not _all_float(Y) or node.attributes.get_int("axis", -1) % rank != rank - 1:
        return False
    total: Pattern = ("ReduceSum", ("Mul", "dY", Y))
    for end in [u.node for u in Y.uses() if u.idx == 0]:
        found: dict[str, Value] = {}
        if not match(end.outputs[0], ("Mul", Y, ("Sub", "dY", total)), found) or not _same_dims(found["dY"], Y):
            continue
        if _reduces_last(_input_maker(_input_maker(end, 1), 1)):
            edit.replace_node(end, op, native(op, "SoftmaxBack", [found["dY"], Y], [0]))
            return True
    return False


def _replace_relu_gradient(node: ir.Node, op: Builder) -> bool:
    """dX = dY * (Y > 0), and the sum of its rows if somebody reads it"""
    Y = node.outputs[0]
    if not shapes.dims(Y) or not _all_float(Y):
        return False
    mask: Pattern = ("Cast", ("Greater", Y, 0.0))
    masks = [u.node.outputs[0] for u in Y.uses() if match(u.node.outputs[0], ("Greater", Y, 0.0), {})]
    for use in [u for m in masks for c in m.uses() for u in c.node.outputs[0].uses()]:
        end, found = use.node, dict[str, Value]()
        if not match(end.outputs[0], ("Mul", "dY", mask), found) or not _same_dims(found["dY"], Y):
            continue
        sums = _sums_of_rows(end.outputs[0])
        name, outputs = ("ReluSumBack", 2) if sums else ("ReluBack", 1)
        made = native(op, name, [found["dY"], Y], [len(sums)], outputs=outputs)
        _take_places(sums, made[-1])
        edit.replace_node(end, op, made[:1])
        return True
    return False


# -- sums of rows ------------------------------------------------------------------------------------------------------


def _replace_sum(node: ir.Node, op: Builder) -> bool:
    X = node.inputs[0]
    if X is None or not _sums_rows(node):
        return False
    edit.replace_node(node, op, native(op, "SumRows", [X], [0]))
    return True


def _sums_rows(node: ir.Node) -> bool:
    """Return whether a node sums all axes but the last, and drops them."""
    X = node.inputs[0]
    dims = None if X is None else shapes.dims(X)
    if node.op_type != "ReduceSum" or X is None or not _all_float(X) or dims is None or len(dims) < 2:
        return False
    last = dims[-1]
    if not isinstance(last, int) or last < 2 or node.attributes.get_int("keepdims", 1) != 0:
        return False
    return shapes.reduced_axes(node) == set(range(len(dims) - 1))


def _sums_of_rows(value: Value) -> list[Value]:
    return [u.node.outputs[0] for u in value.uses() if u.idx == 0 and _sums_rows(u.node)]


def _take_places(old: list[Value], new: Value) -> None:
    """Let `new` take the place of values that are equal; the first gives it its name."""
    if old:
        edit.take_place(old[0], new)
    for value in old[1:]:
        edit.replace_uses({value: new})


# -- the loss ----------------------------------------------------------------------------------------------------------


def _replace_loss(node: ir.Node, op: Builder) -> bool:
    """The mean over the labels that are not ignored, of scores [N, C], with its gradient."""
    X, labels = node.inputs[:2]
    dims = None if X is None else shapes.dims(X)
    if X is None or labels is None or len(node.inputs) > 2 or len(node.outputs) != 2 or not _all_float(X):
        return False
    if labels.dtype != ir.DataType.INT64 or dims is None or len(dims) != 2 or not isinstance(dims[1], int):
        return False
    log_prob = node.outputs[1]
    if node.attributes.get_string("reduction", "mean") != "mean" or not dims[1] or log_prob.is_graph_output():
        return False
    ignored = node.attributes.get_int("ignore_index", None)
    index, share, weighted = _parts_of_loss(labels, log_prob, ignored)
    for end in _readers(_readers(_readers([log_prob], "Exp"), "Mul"), "ScatterElements"):
        found: dict[str, Value] = {}
        scatter = end.producer()
        assert scatter is not None
        if not match(end, ("ScatterElements", weighted, index, ("Neg", share)), found):
            continue
        if scatter.attributes.get_int("axis", 0) != 1 or scatter.attributes.get_string("reduction", "none") != "add":
            continue
        seed = walk.constant_of(found["seed"])
        scales = seed is None and shapes.dims(found["seed"]) == ()  # the loss is scaled (author/loss_scale.py)
        if not (scales or (seed is not None and seed.size == 1)) or not _alone(log_prob, scatter):
            continue
        bits = int(np.float32(1.0 if seed is None else seed.item()).view(np.int32))
        # Without ignore_index every label counts; no label is the least number.
        none = np.iinfo(np.int64).min
        loss, dX = native(op, "CrossEntropy", [X, labels], [none if ignored is None else ignored, bits], outputs=2)
        assert node.graph is not None
        node.graph.insert_before(node, op.nodes)
        if scales:
            behind = Builder(op.opset, op.names, f"{scatter.name}/")
            dX = behind.Mul(dX, found["seed"])
            node.graph.insert_before(scatter, behind.nodes)
        edit.take_places({node.outputs[0]: loss, end: dX})
        return True
    return False


def _parts_of_loss(labels: Value, log_prob: Value, ignored: int | None) -> tuple[Pattern, Pattern, Pattern]:
    """Return the index, the share of each label and the weighted softmax, as the rule of the loss writes them."""
    if ignored is None:
        each: Pattern = ("Div", "seed", ("Cast", ("Size", labels)))
        return ("Unsqueeze", labels), ("Expand", each), ("Mul", ("Exp", log_prob), each)
    kept: Pattern = ("Not", ("Equal", labels, float(ignored)))
    count: Pattern = ("ReduceSum", ("Cast", kept))
    total: Pattern = ("Add", count, ("Cast", ("Equal", count, 0.0)))
    share: Pattern = ("Unsqueeze", ("Mul", ("Div", "seed", total), ("Cast", kept)))
    return ("Unsqueeze", ("Mul", labels, ("Cast", kept))), share, ("Mul", ("Exp", log_prob), share)


def _readers(values: list[Value], op_type: str) -> list[Value]:
    """Return what the nodes of this type make of the values as their first input."""
    uses = [u for v in values for u in v.uses()]
    return [u.node.outputs[0] for u in uses if u.idx == 0 and u.node.op_type == op_type]


def _alone(log_prob: Value, end: ir.Node) -> bool:
    """Return whether only the gradient that ends here reads the logarithms, and what is made of them."""
    value = log_prob
    while True:
        uses = list(value.uses())
        if len(uses) != 1 or value.is_graph_output():
            return False
        if uses[0].node is end:
            return True
        value = uses[0].node.outputs[0]


# -- all of them -------------------------------------------------------------------------------------------------------


def _all_float(*values: Value) -> bool:
    return all(v.dtype == ir.DataType.FLOAT for v in values)


def _same_dims(a: Value, b: Value) -> bool:
    """Return whether two values surely have one shape."""
    dims = shapes.dims(a)
    return dims is not None and None not in dims and dims == shapes.dims(b) and _all_float(a, b)


def _reduces_last(node: ir.Node) -> bool:
    X = node.inputs[0]
    dims = None if X is None else shapes.dims(X)
    if dims is None or not node.attributes.get_int("keepdims", 1):
        return False
    return shapes.reduced_axes(node) == {len(dims) - 1}


def _first(nodes: set[ir.Node]) -> ir.Node:
    graph = next(iter(nodes)).graph
    assert graph is not None
    return next(n for n in graph if n in nodes)
