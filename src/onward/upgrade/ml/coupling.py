"""Pairwise coupling: the probabilities of classes from the scores of their pairs, as libsvm and ONNX Runtime find them.

With r[i, j] the probability of class i where only i and j are possible, they minimise p'Qp over the probabilities p,
Q[i, j] = -r[j, i] r[i, j] and Q[i, i] = the sum of r[j, i]^2 over j: "Probability Estimates for Multi-class
Classification by Pairwise Coupling", Wu, Lin and Weng, 2004, their second method. The iteration ends early, sample by
sample, so its numbers and its gradient are those of the sweeps that were made.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.emit import subgraph_input
from onward.graph.builder import Builder, Value
from onward.upgrade.microsoft.call import Call
from onward.upgrade.ml import values
from onward.upgrade.ml.values import FLOAT

_SWEEPS = 100
_CLOSE = 0.005  # divided by the number of classes: where a sample is finished
_SMALLEST = 1e-7  # of the probability in a pair


def coupled(call: Call, scores: Value, classes: int) -> Value:
    """Return the probabilities of the classes, (N, classes), from the scores of the pairs, (N, pairs)."""
    op = call.op
    pairs = classes * (classes - 1) // 2
    A, B = (
        values.weight(call, name, np.asarray(call.attr(name, None) or (), np.float32)[:pairs])
        for name in ("prob_a", "prob_b")
    )
    beaten = op.Sigmoid(op.Add(op.Mul(scores, A), B))
    first = op.Clip(op.Sub(1.0, beaten), op.constant(_SMALLEST, FLOAT), op.constant(np.float32(1) - np.float32(1e-7)))
    r = _matrix(call, first, classes)
    mirrored = op.Transpose(r, perm=[0, 2, 1])
    own = op.ReduceSum(op.Mul(mirrored, mirrored), np.array([2]), keepdims=1)
    eye = _eye(op, classes)
    Q = op.Sub(op.Mul(own, op.Unsqueeze(eye, np.array([0]))), op.Mul(r, mirrored))
    return _minimised(call, Q, eye, classes)


def _matrix(call: Call, first: Value, classes: int) -> Value:
    """Return r, (N, classes, classes), from the probabilities of the first class of each pair; its diagonal is 0."""
    op = call.op
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    place = np.full((classes, classes), 2 * len(pairs), np.int64)
    for k, (i, j) in enumerate(pairs):
        place[i, j], place[j, i] = k, len(pairs) + k
    nothing = op.Mul(op.Slice(first, np.array([0]), np.array([1]), np.array([1])), 0.0)
    every = op.Concat(first, op.Sub(1.0, first), nothing, axis=1)
    return op.Gather(every, op.constant(place), axis=1)


def _minimised(call: Call, Q: Value, eye: Value, classes: int) -> Value:
    """Return p after sweeps over its elements; one step of the Loop is one element of all samples.

    With d = (p'Qp - (Qp)[i]) / Q[i, i], element i grows by d, and everything is divided by 1 + d.
    """
    op = call.op
    body = Builder(op.opset, op.names, prefix=f"{op.prefix}coupling/")
    step = subgraph_input(body, "step", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
    go = subgraph_input(body, "go", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
    p, Qp = (subgraph_input(body, name, ir.TensorType(FLOAT), ir.Shape([None, classes])) for name in ("p", "Qp"))
    pQp = subgraph_input(body, "pQp", ir.TensorType(FLOAT), ir.Shape([None, 1]))
    busy = subgraph_input(body, "busy", ir.TensorType(ir.DataType.BOOL), ir.Shape([None, 1]))

    element = body.Mod(step, classes)
    sweeps = body.Equal(element, 0)  # a sweep begins: look how far it is, with fresh numbers
    fresh = body.Squeeze(body.MatMul(Q, body.Unsqueeze(p, np.array([2]))), np.array([2]))
    Qp_now = body.Where(sweeps, fresh, Qp)
    pQp_now = body.Where(sweeps, body.ReduceSum(body.Mul(p, fresh), np.array([1]), keepdims=1), pQp)
    given, keyword = values.axes(call, 1)
    far = body.ReduceMax(body.Abs(body.Sub(Qp_now, pQp_now)), *given, **keyword, keepdims=1)
    close = body.Less(far, body.constant(np.float32(_CLOSE) / np.float32(classes)))
    busy_now = body.And(busy, body.Not(body.And(sweeps, close)))

    chosen = body.Unsqueeze(body.Gather(eye, element, axis=0), np.array([0]))  # (1, classes)
    row = body.Gather(Q, element, axis=1)
    Q_ii, Qp_i = (body.ReduceSum(body.Mul(v, chosen), np.array([1]), keepdims=1) for v in (row, Qp_now))
    diff = body.Where(busy_now, body.Div(body.Sub(pQp_now, Qp_i), Q_ii), body.constant(0.0, FLOAT))
    scale = body.Add(diff, 1.0)
    p_next = body.Div(body.Add(p, body.Mul(diff, chosen)), scale)
    change = body.Mul(diff, body.Add(body.Mul(diff, Q_ii), body.Mul(Qp_i, 2.0)))
    pQp_next = body.Div(body.Div(body.Add(pQp_now, change), scale), scale)
    Qp_next = body.Div(body.Add(Qp_now, body.Mul(diff, row)), scale)
    some = body.ReduceSum(body.Cast(busy_now, to=FLOAT), keepdims=0)  # of no samples, too
    on = body.And(go, body.Greater(some, body.constant(0.0, FLOAT)))
    outputs = [on, p_next, Qp_next, pQp_next, busy_now]
    for output, formal in zip(outputs, [go, p, Qp, pQp, busy], strict=True):
        output.type, output.shape = formal.type, formal.shape
    graph = ir.Graph(
        [step, go, p, Qp, pQp, busy], outputs, nodes=body.nodes, name=op.names.unique(f"{body.prefix}step")
    )

    nothing = op.Mul(op.Gather(Q, 0, axis=1), 0.0)  # (N, classes)
    start = op.Add(nothing, op.constant(np.float32(1) / np.float32(classes)))
    column = op.Slice(nothing, np.array([0]), np.array([1]), np.array([1]))
    all_busy = op.Equal(column, op.constant(0.0, FLOAT))
    states = [start, nothing, column, all_busy]
    found = op.call("Loop", [np.array(_SWEEPS * classes), np.array(True), *states], outputs=4, body=graph)
    for value, formal in zip(found, [p, Qp, pQp, busy], strict=True):
        value.type, value.shape = formal.type, formal.shape
    return op.Reshape(found[0], np.array([0, classes]))  # nothing tells the sizes behind a Loop otherwise


def _eye(op: Builder, size: int) -> Value:
    """Return the unit matrix; as truth values in the file, it is no weight."""
    return op.Cast(op.constant(np.eye(size, dtype=bool)), to=FLOAT)
