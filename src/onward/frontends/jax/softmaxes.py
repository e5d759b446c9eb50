"""Recognise softmax and the logarithm of a sum of exponentials, which JAX writes as arithmetic.

    e = exp(x - stop_gradient(max x))        e / Σe = Softmax(x)        log Σe + max x = ReduceLogSumExp(x)

One node replaces several passes. What no longer has a derivative of its own, a framework can differentiate by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onward.frontends.jax.patterns import behind, number, parts
from onward.frontends.jaxpr.frame import constant_of
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import remove_dead_nodes
from onward.graph.schema import GRADIENT_DOMAIN

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def recognise_softmaxes(graph: ir.Graph, opset: int, names: Names) -> int:
    """Replace every such group of nodes; return their number."""
    count = 0
    for node in list(graph):
        if node.op_type == "Exp" and node.domain == "":
            found = _shifted(node)
            if found is not None:
                count += _replace(graph, node, *found, Builder(opset, names, prefix="train/"))
    if count:
        remove_dead_nodes(graph)
    return count


def _shifted(exponential: ir.Node) -> tuple[Value, Value, int] | None:
    """Return x, its maximum and the axis, if the node is exp(x - stop_gradient(max x))."""
    difference = parts(exponential.inputs[0], "Sub")
    if difference is None or behind(exponential.inputs[0]) is not exponential.inputs[0]:
        return None
    x, shift = difference[0], behind(difference[1])
    stopped = None if shift is None else shift.producer()
    if stopped is None or stopped.domain != GRADIENT_DOMAIN or stopped.op_type != "StopGradient":
        return None
    assert shift is not None
    greatest = parts(_without_bounds(stopped.inputs[0]), "ReduceMax")
    axis = None if greatest is None else _axis(greatest)
    if greatest is None or axis is None or greatest[0] is not x or x.dtype not in _TYPES:
        return None
    return x, shift, axis


def _without_bounds(value: Value | None) -> Value | None:
    """Return a maximum without max(-∞, maximum), and without the choice of 0 where it is infinite."""
    while True:
        bounded, chosen = parts(value, "Max"), parts(value, "Where")
        if bounded is not None and number(bounded[0]) == -np.inf:
            value = bounded[1]
        elif chosen is not None and number(chosen[2]) == 0.0 and _is_finite(chosen[0], chosen[1]):
            value = chosen[1]
        else:
            return value


def _is_finite(condition: Value, of: Value) -> bool:
    """Return whether a condition says that a value is neither NaN nor infinite."""
    inverse = parts(condition, "Not")
    either = None if inverse is None else parts(inverse[0], "Or")
    if either is None:
        return False
    tests = [parts(either[0], "IsNaN"), parts(either[1], "IsInf")]
    return all(test is not None and test[0] is of for test in tests)


def _axis(reduction: tuple[Value, ...]) -> int | None:
    """Return the only axis of a reduction."""
    axes = constant_of(reduction[1]) if len(reduction) == 2 else None
    rank = 0 if reduction[0].shape is None else len(reduction[0].shape)
    return int(axes.reshape(-1)[0]) % rank if axes is not None and axes.size == 1 and rank else None


def _reshapings(value: Value) -> Iterator[Value]:
    """Yield a value and what merely reshapes it."""
    yield value
    for use in list(value.uses()):
        if use.node.op_type in ("Reshape", "Unsqueeze", "Squeeze", "Identity") and use.idx == 0:
            yield from _reshapings(use.node.outputs[0])


def _replace(graph: ir.Graph, exponential: ir.Node, x: Value, shift: Value, axis: int, op: Builder) -> int:
    e = exponential.outputs[0]
    sums = [use.node.outputs[0] for use in e.uses() if use.node.op_type == "ReduceSum" and use.idx == 0]
    sums = [s for s in sums if (found := parts(s, "ReduceSum")) is not None and _axis(found) == axis]
    softmaxes = [
        use.node.outputs[0]
        for total in sums
        for same in _reshapings(total)
        for use in same.uses()
        if use.node.op_type == "Div" and use.idx == 1 and use.node.inputs[0] is e
    ]
    logarithms = [v for total in sums for v in _logarithms(total, shift)]
    replaced: list[tuple[Value, Value]] = []
    if softmaxes:
        made: Value = op.Softmax(x, axis=axis)
        replaced += [(old, made) for old in softmaxes if not old.is_graph_output()]
    if logarithms and x.shape is not None:
        whole: Value = op.ReduceLogSumExp(x, np.array([axis], np.int64), keepdims=0)
        whole.type, whole.shape = x.type, ir.Shape([d for i, d in enumerate(x.shape) if i != axis])
        for old in logarithms:
            kept = old.shape is not None and len(old.shape) == len(x.shape)
            new = op.Unsqueeze(whole, np.array([axis], np.int64)) if kept else whole
            replaced += [] if old.is_graph_output() else [(old, new)]
    if not replaced:
        return 0
    graph.insert_before(exponential, op.nodes)
    for old, new in replaced:
        new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        old.replace_all_uses_with(new)
    return 1


def _logarithms(total: Value, shift: Value) -> Iterator[Value]:
    """Yield the values log Σe + max x; JAX takes the absolute value of the sum first."""
    for same in _reshapings(total):
        for use in list(same.uses()):
            if use.node.op_type == "Abs":
                yield from _logarithms(use.node.outputs[0], shift)
            elif use.node.op_type == "Log":
                yield from _sums(use.node.outputs[0], shift)


def _sums(logarithm: Value, shift: Value) -> Iterator[Value]:
    for same in _reshapings(logarithm):
        for use in list(same.uses()):
            if use.node.op_type == "Add" and behind(use.node.inputs[1 - use.idx]) is shift:
                yield use.node.outputs[0]
