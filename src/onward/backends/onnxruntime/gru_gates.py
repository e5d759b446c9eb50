"""Keep the gates of GRU layers for the backward pass, instead of computing them twice.

As for LSTM layers (`lstm_gates`), a Scan that outputs its gates replaces the layer and the recomputation of the gates
by its gradient. This is for layers with `linear_before_reset`, as PyTorch and Keras have them: their recurrent part is
one product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onward.backends.onnxruntime.lstm_gates import initial_state, is_plain, products, user
from onward.graph import edit
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes


@dataclasses.dataclass(frozen=True)
class _Recomputed:
    """The values that the backward pass recomputes for all steps, the recurrent part of the candidate among them."""

    z: Value
    r: Value
    h: Value
    inner: Value


class KeepGatesOfGru(Pass):
    """Let GRU layers keep their gates, where the backward pass recomputes them."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "GRU", self._replace)

    def _replace(self, node: ir.Node, op: Builder) -> bool:
        """Replace the layer and the recomputed values."""
        if node.attributes.get_int("linear_before_reset", 0) != 1 or not is_plain(node):
            return False
        recomputed = _find_recomputed(node)
        if recomputed is None:
            return False
        X, W, R, B, _, given = [*node.inputs, *[None] * (6 - len(node.inputs))][:6]
        assert X is not None
        assert W is not None
        assert R is not None
        size = node.attributes.get_int("hidden_size", 0)
        from_X = op.MatMul(X, op.Transpose(op.Squeeze(W, [0]), perm=[1, 0]))
        recurrent_bias = None
        if B is not None:
            bias, recurrent_bias = op.multi("Split", op.Squeeze(B, [0]), outputs=2, axis=0, num_outputs=2)
            from_X = op.Add(from_X, bias)
        start = initial_state(op, X, size, given)
        last, hidden, *kept = self._run(op, from_X, R, recurrent_bias, start, size)
        results = [op.Unsqueeze(hidden, [1]), op.Unsqueeze(last, [0])]
        assert node.graph is not None
        node.graph.insert_before(node, op.nodes)
        old = [recomputed.z, recomputed.r, recomputed.h, recomputed.inner]
        for before, after in [*zip(node.outputs, results, strict=False), *zip(old, kept, strict=True)]:
            edit.take_place(before, after)
        return True

    def _run(
        self, op: Builder, from_X: Value, R: Value, bias: Value | None, start: Value, size: int
    ) -> Sequence[Value]:
        """Return the last H, and of all steps H, z, r, h and the recurrent part of h; `start` is the first H."""
        sizes = op.constant([2 * size, size], ir.DataType.INT64)
        bounded, candidate = op.multi("Split", from_X, sizes, outputs=2, axis=-1)
        recurrent = op.Transpose(op.Squeeze(R, [0]), perm=[1, 0])
        body = _step(op, from_X.dtype, recurrent, bias, size)
        return op.call("Scan", [start, bounded, candidate], outputs=6, body=body, num_scan_inputs=2)


def _find_recomputed(node: ir.Node) -> _Recomputed | None:
    """Return the values that the backward pass recomputes for this layer; None for an unknown pattern."""
    X, W = node.inputs[:2]
    assert X is not None
    assert W is not None
    from_X = [n for n in products(W) if n.inputs[0] is X]
    if len(from_X) != 1:
        return None
    made: ir.Node | None = from_X[0]
    biased = len(node.inputs) > 3 and node.inputs[3] is not None
    if biased:
        made = user(from_X[0].outputs[0], "Add")
    split = None if made is None else user(made.outputs[0], "Split")
    if split is None or len(split.outputs) != 3:
        return None
    gates = [_gate(part, biased) for part in split.outputs[:2]]
    total = user(split.outputs[2], "Add")
    tanh = None if total is None else user(total.outputs[0], "Tanh")
    reset = None if total is None or total.inputs[1] is None else total.inputs[1].producer()
    z, r = gates
    if z is None or r is None or tanh is None or reset is None or reset.op_type != "Mul" or reset.inputs[0] is not r:
        return None
    inner = reset.inputs[1]
    return None if inner is None else _Recomputed(z, r, tanh.outputs[0], inner)


def _gate(part: Value, biased: bool) -> Value | None:
    """Return the Sigmoid of a part, to which the recurrent part and perhaps a bias are added."""
    total = user(part, "Add")
    if total is not None and biased:
        total = user(total.outputs[0], "Add")
    sigmoid = None if total is None else user(total.outputs[0], "Sigmoid")
    return None if sigmoid is None else sigmoid.outputs[0]


def _step(op: Builder, dtype: ir.DataType | None, recurrent: Value, bias: Value | None, size: int) -> ir.Graph:
    """Return one step: from H and the projected input to new H, and the outputs H, z, r, h and the recurrent part."""
    inside = Builder(op.opset, op.names, f"{op.prefix}step/")
    kind = None if dtype is None else ir.TensorType(dtype)
    names = (op.names.unique(f"{inside.prefix}{n}") for n in ("H", "bounded", "candidate"))
    H, bounded, candidate = (ir.Value(name=name, type=kind) for name in names)
    product = inside.MatMul(H, recurrent)
    if bias is not None:
        product = inside.Add(product, bias)
    sizes = inside.constant([2 * size, size], ir.DataType.INT64)
    for_gates, inner = inside.multi("Split", product, sizes, outputs=2, axis=-1)
    gates = inside.Sigmoid(inside.Add(bounded, for_gates))
    z, r = inside.multi("Split", gates, outputs=2, axis=-1, num_outputs=2)
    h = inside.Tanh(inside.Add(candidate, inside.Mul(r, inner)))
    new = inside.Add(h, inside.Mul(z, inside.Sub(H, h)))
    outputs = [new, inside.Identity(new), z, r, h, inner]
    return ir.Graph([H, bounded, candidate], outputs, nodes=inside.nodes, name=f"{op.prefix}step")
