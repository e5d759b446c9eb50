"""Lower ONNX's optimizer operators (ai.onnx.preview.training) to plain operators, as the standard defines them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.errors import Diagnostic, ModelError, named_node
from onward.graph import shapes, walk
from onward.graph.builder import Builder, Value
from onward.graph.edit import replace_node
from onward.graph.schema import TRAINING_DOMAIN, attribute_default
from onward.passes.base import NO_GRADIENTS, NO_OPTIMIZERS, Pass, Unit

M300 = "M300"


class LowerOptimizers(Pass):
    """Replace every Adagrad, Adam and Momentum node by plain operators."""

    ensures = (NO_OPTIMIZERS,)
    requires = (NO_GRADIENTS,)

    def run(self, unit: Unit) -> bool:
        found = [n for n in walk.all_nodes(unit.graph) if n.domain == TRAINING_DOMAIN and n.op_type in _UPDATES]
        for node in found:
            op = unit.builder(f"{node.name or node.op_type}/")
            replace_node(node, op, _UPDATES[node.op_type](node, op))
        return bool(found)


def _number(node: ir.Node, name: str) -> float:
    """Return an attribute rounded to 32 bits, as a file stores it."""
    attribute = node.attributes.get(name)
    given = attribute_default(node.op_type, node.domain, 1, name) if attribute is None else attribute.as_float()
    return float(np.float32(given or 0.0))


def _groups(node: ir.Node, kinds: int) -> tuple[Value, Value, list[list[Value]]]:
    """Return R, T and the tensors by kind."""
    inputs = [v for v in node.inputs if v is not None]
    tensors = inputs[2:]
    if len(inputs) != len(node.inputs) or not tensors or len(tensors) % kinds:
        raise ModelError(
            Diagnostic(
                M300,
                f"`{node.op_type}` has {len(tensors)} tensors",
                place=named_node(node),
                needed=f"R, T and a multiple of {kinds} tensors",
            )
        )
    count = len(tensors) // kinds
    return inputs[0], inputs[1], [tensors[i * count : (i + 1) * count] for i in range(kinds)]


def _scalar(op: Builder, value: Value, dtype: ir.DataType | None) -> Value:
    """Return a rate or a counter as a rank-0 tensor of `dtype`; the standard also allows shape [1]."""
    if shapes.static_shape(value) != ():
        value = op.Reshape(value, np.array([], np.int64))
    return op.cast(value, dtype) if dtype is not None else value


def _regularised(op: Builder, node: ir.Node, X: Value, G: Value) -> Value:
    """g = norm_coefficient * X + G."""
    coefficient = _number(node, "norm_coefficient")
    return G if coefficient == 0 else op.Add(op.Mul(X, coefficient), G)


def _adagrad(node: ir.Node, op: Builder) -> list[Value]:
    """r = R / (1 + T * decay_factor); H' = H + g²; X' = X - r * g / (sqrt(H') + epsilon)."""
    R, T, (xs, gs, hs) = _groups(node, 3)
    decay, epsilon = _number(node, "decay_factor"), _number(node, "epsilon")
    new_x, new_h = [], []
    for X, G, H in zip(xs, gs, hs, strict=True):
        rate = _scalar(op, R, X.dtype)
        if decay:
            rate = op.Div(rate, op.Add(op.Mul(_scalar(op, T, X.dtype), decay), 1.0))
        g = _regularised(op, node, X, G)
        h = op.Add(H, op.Mul(g, g))
        new_x.append(op.Sub(X, op.Div(op.Mul(g, rate), op.Add(op.Sqrt(h), epsilon))))
        new_h.append(h)
    return [*new_x, *new_h]


def _adam(node: ir.Node, op: Builder) -> list[Value]:
    """V' = alpha V + (1-alpha) g; H' = beta H + (1-beta) g²; X' = (1-post) (X - R' V' / (sqrt(H') + epsilon)).

    R' = R sqrt(1 - beta^T) / (1 - alpha^T) for T > 0, else R.
    """
    R, T, (xs, gs, vs, hs) = _groups(node, 4)
    alpha, beta, epsilon = (_number(node, n) for n in ("alpha", "beta", "epsilon"))
    post = _number(node, "norm_coefficient_post")
    rates: dict[ir.DataType | None, Value] = {}
    new_x, new_v, new_h = [], [], []
    for X, G, V, H in zip(xs, gs, vs, hs, strict=True):
        if X.dtype not in rates:
            rates[X.dtype] = _adam_rate(op, R, T, alpha, beta, X.dtype)
        g = _regularised(op, node, X, G)
        v = op.Add(op.Mul(V, alpha), op.Mul(g, 1.0 - alpha))
        h = op.Add(op.Mul(H, beta), op.Mul(op.Mul(g, g), 1.0 - beta))
        x = op.Sub(X, op.Div(op.Mul(v, rates[X.dtype]), op.Add(op.Sqrt(h), epsilon)))
        new_x.append(op.Mul(x, 1.0 - post) if post else x)
        new_v.append(v)
        new_h.append(h)
    return [*new_x, *new_v, *new_h]


def _adam_rate(op: Builder, R: Value, T: Value, alpha: float, beta: float, dtype: ir.DataType | None) -> Value:
    rate, count = _scalar(op, R, dtype), _scalar(op, T, None)
    started = op.Greater(count, 0)
    steps = op.Cast(op.Max(count, 1), to=dtype or ir.DataType.FLOAT)  # at T = 0 the other branch is taken
    one_minus = [op.Sub(op.constant(np.array(1.0), dtype), op.Pow(op.constant(np.array(b), dtype), steps))
                 for b in (beta, alpha)]  # fmt: skip
    corrected = op.Div(op.Mul(rate, op.Sqrt(one_minus[0])), one_minus[1])
    return op.Where(started, corrected, rate)


def _momentum(node: ir.Node, op: Builder) -> list[Value]:
    """V' = alpha V + (beta if T > 0 else 1) g; X' = X - R V', or with mode "nesterov" X - R (g + alpha V')."""
    R, T, (xs, gs, vs) = _groups(node, 3)
    alpha, beta = _number(node, "alpha"), _number(node, "beta")
    nesterov = node.attributes["mode"].as_string() == "nesterov"
    new_x, new_v = [], []
    for X, G, V in zip(xs, gs, vs, strict=True):
        rate = _scalar(op, R, X.dtype)
        g = _regularised(op, node, X, G)
        if beta == 1.0:
            scaled = g
        else:
            one = op.constant(np.array(1.0), X.dtype)
            scaled = op.Mul(g, op.Where(op.Greater(_scalar(op, T, None), 0), op.constant(np.array(beta), X.dtype), one))
        v = op.Add(op.Mul(V, alpha), scaled)
        direction = op.Add(g, op.Mul(v, alpha)) if nesterov else v
        new_x.append(op.Sub(X, op.Mul(direction, rate)))
        new_v.append(v)
    return [*new_x, *new_v]


_UPDATES: dict[str, Callable[[ir.Node, Builder], list[Value]]] = {
    "Adagrad": _adagrad,
    "Adam": _adam,
    "Momentum": _momentum,
}
