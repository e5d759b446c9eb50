"""Keep the gates of LSTM layers for the backward pass, instead of computing them twice.

The gradient of LSTM recomputes the gates of all steps, because the operator does not output them. That takes two matrix
products as large as the forward pass. On a CPU it is cheaper to run the layer as a Scan that outputs the gates. The
Scan replaces both the layer and the recomputation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onward.graph import edit
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes

WORTH_IT = 64  # hidden units; below this, the steps of a Scan cost more than computing the gates twice
_DEFAULTS = {"layout": 0, "input_forget": 0, "direction": "forward", "linear_before_reset": 1}


@dataclasses.dataclass(frozen=True)
class _Recomputed:
    """The values that the backward pass recomputes: gates i, o, f, c and the cell states of all steps."""

    gates: tuple[Value, Value, Value, Value]
    cells: Value


class KeepGates(Pass):
    """Let LSTM layers keep their gates, where the backward pass recomputes them."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "LSTM", self._replace)

    def _replace(self, node: ir.Node, op: Builder) -> bool:
        """Replace the layer and the recomputed values."""
        recomputed = _find_recomputed(node) if is_plain(node) else None
        if recomputed is None:
            return False
        X, W, R, B, _, *given = [*node.inputs, *[None] * (7 - len(node.inputs))][:7]
        assert X is not None
        assert W is not None
        assert R is not None
        gates = op.MatMul(X, op.Transpose(op.Squeeze(W, [0]), perm=[1, 0]))
        if B is not None:
            gates = op.Add(gates, op.Add(*op.multi("Split", op.Squeeze(B, [0]), outputs=2, axis=0, num_outputs=2)))
        size = node.attributes.get_int("hidden_size", 0)
        H, C, hidden, cells, *kept = self._run(op, gates, R, [initial_state(op, X, size, g) for g in given], size)
        results = [op.Unsqueeze(hidden, [1]), op.Unsqueeze(H, [0]), op.Unsqueeze(C, [0])]
        assert node.graph is not None
        node.graph.insert_before(node, op.nodes)
        old = [*zip(node.outputs, results, strict=False), *zip(recomputed.gates, kept, strict=True)]
        for before, after in [*old, (recomputed.cells, cells)]:
            edit.take_place(before, after)
        return True

    def _run(self, op: Builder, gates: Value, R: Value, start: list[Value], size: int) -> Sequence[Value]:
        """Return the last H and C, and of all steps H, C and the gates i, o, f, c; `start` is the first H and C."""
        recurrent = op.Transpose(op.Squeeze(R, [0]), perm=[1, 0])
        body = _step(op, gates.dtype, recurrent, size)
        *made, bounded, candidates = op.call("Scan", [*start, gates], outputs=6, body=body, num_scan_inputs=1)
        return [*made, *op.multi("Split", bounded, outputs=3, axis=-1, num_outputs=3), candidates]


def is_plain(node: ir.Node) -> bool:
    """Return whether this is a forward layer with the usual activations, no lengths and no peepholes, large enough."""
    if set(node.attributes) - {*_DEFAULTS, "hidden_size"}:
        return False
    if any(a.value != _DEFAULTS.get(a.name, a.value) for a in node.attributes.values()):
        return False
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    return inputs[4] is None and inputs[7] is None and node.attributes.get_int("hidden_size", 0) >= WORTH_IT


def user(value: Value, op_type: str, position: int = 0) -> ir.Node | None:
    """Return the one node of this type that reads `value` at `position`."""
    found = [use.node for use in value.uses() if use.node.op_type == op_type and use.idx == position]
    return found[0] if len(found) == 1 else None


def products(weight: Value) -> list[ir.Node]:
    """Return the products with the transposed weights of all steps."""
    squeezed = user(weight, "Squeeze")
    transposed = None if squeezed is None else user(squeezed.outputs[0], "Transpose")
    uses = [] if transposed is None else transposed.outputs[0].uses()
    return [use.node for use in uses if use.node.op_type == "MatMul" and use.idx == 1]


def _find_recomputed(node: ir.Node) -> _Recomputed | None:
    """Return the values that the backward pass recomputes for this layer; None for an unknown pattern."""
    X, W, R = node.inputs[:3]
    assert X is not None
    assert W is not None
    assert R is not None
    from_X = [n for n in products(W) if n.inputs[0] is X]
    from_H = products(R)
    if len(from_X) != 1 or len(from_H) != 1 or not is_shifted_output(from_H[0].inputs[0], node.outputs[0]):
        return None
    total = user(from_X[0].outputs[0], "Add")
    if total is None or total.inputs[1] is not from_H[0].outputs[0]:
        return None
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        total = user(total.outputs[0], "Add")
    split = None if total is None else user(total.outputs[0], "Split")
    if split is None or len(split.outputs) != 4:
        return None
    kinds = ("Sigmoid", "Sigmoid", "Sigmoid", "Tanh")
    found = [user(part, kind) for part, kind in zip(split.outputs, kinds, strict=True)]
    i, o, f, c = (None if n is None else n.outputs[0] for n in found)
    if i is None or o is None or f is None or c is None:
        return None
    scan = user(f, "Scan", 1)
    if scan is None or len(scan.inputs) != 3 or len(scan.outputs) != 2:
        return None
    product = scan.inputs[2].producer() if scan.inputs[2] is not None else None
    if product is None or product.op_type != "Mul" or set(product.inputs) != {i, c}:
        return None
    return _Recomputed((i, o, f, c), scan.outputs[1])


def is_shifted_output(value: Value | None, Y: Value) -> bool:
    """Return whether `value` is Y, one step later."""
    node = None if value is None else value.producer()
    if node is None or node.op_type not in ("Concat", "Pad"):
        return False
    last = node.inputs[1 if node.op_type == "Concat" else 0]
    cut = None if last is None else last.producer()
    source = None if cut is None or cut.op_type != "Slice" or cut.inputs[0] is None else cut.inputs[0].producer()
    return source is not None and source.op_type == "Squeeze" and source.inputs[0] is Y


def initial_state(op: Builder, X: Value, size: int, given: Value | None) -> Value:
    """Return the state before the first step: what is given, or zeros."""
    if given is not None:
        return op.Squeeze(given, [0])
    batch = op.Concat(op.Shape(X, start=1, end=2), op.constant([size], ir.DataType.INT64), axis=0)
    return op.Expand(op.constant(0.0, X.dtype), batch)


def _step(op: Builder, dtype: ir.DataType | None, recurrent: Value, size: int) -> ir.Graph:
    """Return one step: from H, C and the projected input to new H, C, and the outputs H, C, (i, o, f) and c."""
    inner = Builder(op.opset, op.names, f"{op.prefix}step/")
    kind = None if dtype is None else ir.TensorType(dtype)
    H, C, from_X = (ir.Value(name=op.names.unique(f"{inner.prefix}{n}"), type=kind) for n in ("H", "C", "X"))
    total = inner.Add(inner.MatMul(H, recurrent), from_X)
    sizes = inner.constant([3 * size, size], ir.DataType.INT64)
    bounded, candidate = inner.multi("Split", total, sizes, outputs=2, axis=-1)
    bounded, candidate = inner.Sigmoid(bounded), inner.Tanh(candidate)
    i, o, f = inner.multi("Split", bounded, outputs=3, axis=-1, num_outputs=3)
    cell = inner.Add(inner.Mul(f, C), inner.Mul(i, candidate))
    hidden = inner.Mul(o, inner.Tanh(cell))
    kept = [inner.Identity(hidden), inner.Identity(cell), bounded, candidate]
    return ir.Graph([H, C, from_X], [hidden, cell, *kept], nodes=inner.nodes, name=f"{op.prefix}step")
