"""Let native kernels run LSTM and GRU layers over time, forward and backward.

As in `lstm_gates` and `gru_gates`, the layer keeps its gates. In place of a Scan of small operators, whose every step
wakes the threads several times, one operator runs all steps forward, and one runs them backward.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.backends.onnxruntime.gru_gates import KeepGatesOfGru
from onward.backends.onnxruntime.lstm_gates import KeepGates, user
from onward.backends.onnxruntime.native.nodes import native
from onward.graph import edit, walk
from onward.graph.builder import Builder, Value


class UseNativeLstm(KeepGates):
    """Replace LSTM layers whose gates the backward pass recomputes, and the steps of their gradients."""

    def _replace(self, node: ir.Node, op: Builder) -> bool:
        R = node.inputs[2]
        if R is None or R.dtype != ir.DataType.FLOAT or not super()._replace(node, op):
            return False
        forward = _forward(op)
        R, _, c0 = forward.inputs[1:]
        _, _, _, cells, gates = forward.outputs
        i, o, f, c = _split(gates)
        scan = _find_lstm_gradient(R, cells, i, o, f, c)
        if scan is not None:
            dh, dc, *dY = (scan.inputs[k] for k in (0, 1, *range(5, len(scan.inputs))))
            kind = "LstmBackAll" if dY else "LstmBack"
            inputs = [gates, R, dh, c0, cells, dc, *dY]
            _insert(scan, op, kind, inputs, forward, scan.outputs)
        return True

    def _run(self, op: Builder, gates: Value, R: Value, start: list[Value], size: int) -> Sequence[Value]:
        *made, kept = native(op, "Lstm", [gates, R, *start], [size, 4], outputs=5)
        return [*made, *op.multi("Split", kept, outputs=4, axis=-1, num_outputs=4)]


class UseNativeGru(KeepGatesOfGru):
    """Replace GRU layers whose gates the backward pass recomputes, and the steps of their gradients."""

    def _replace(self, node: ir.Node, op: Builder) -> bool:
        R = node.inputs[2]
        if R is None or R.dtype != ir.DataType.FLOAT or not super()._replace(node, op):
            return False
        forward = _forward(op)
        R, h0 = forward.inputs[1:3]
        _, hidden, kept = forward.outputs
        z, r, h, inner = _split(kept)
        found = _find_gru_gradient(R, hidden, z, r, h, inner)
        if found is not None:
            scan, dX = found
            dh, *dY = (scan.inputs[k] for k in (0, *range(3, len(scan.inputs))))
            kind = "GruBackAll" if dY else "GruBack"
            _insert(scan, op, kind, [kept, R, dh, h0, hidden, *dY], forward, [scan.outputs[0], dX, scan.outputs[1]])
        return True

    def _run(
        self, op: Builder, from_X: Value, R: Value, bias: Value | None, start: Value, size: int
    ) -> Sequence[Value]:
        kind, biases = ("Gru", []) if bias is None else ("GruBiased", [bias])
        *made, kept = native(op, kind, [from_X, R, start, *biases], [size, 3], outputs=3)
        return [*made, *op.multi("Split", kept, outputs=4, axis=-1, num_outputs=4)]


def _forward(op: Builder) -> ir.Node:
    """Return the native node among those just made."""
    return next(n for n in op.nodes if n.domain)


def _split(kept: Value) -> tuple[Value, ...]:
    node = user(kept, "Split")
    assert node is not None
    return tuple(node.outputs)


def _insert(
    scan: ir.Node, before: Builder, kind: str, inputs: Sequence[Value | None], forward: ir.Node, old: Sequence[Value]
) -> None:
    """Put the kernel that runs backward in place of the Scan."""
    assert scan.graph is not None
    op = Builder(before.opset, before.names, f"{scan.name}/")
    sizes = forward.attributes["sizes"].as_ints()
    made = native(op, kind, [v for v in inputs if v is not None], sizes, outputs=3)
    scan.graph.insert_before(scan, op.nodes)
    for value, new in zip(old, made, strict=True):
        edit.take_place(value, new)


# -- the gradients, as autodiff/rules/recurrent.py writes them ---------------------------------------------------------


def _find_lstm_gradient(R: Value | None, cells: Value, i: Value, o: Value, f: Value, c: Value) -> ir.Node | None:
    """Return the Scan over dC = dC + dH by_H, da = (dC, dH, dC, dC) factors; None for anything else."""
    after = _made("Tanh", cells)
    by_H = _made("Mul", o, _slope_of_tanh(after))
    factors = _made(
        "Concat",
        _made("Mul", c, _slope_of_sigmoid(i)),
        _made("Mul", after, _slope_of_sigmoid(o)),
        _made("Mul", _before(cells), _slope_of_sigmoid(f)),
        _made("Mul", i, _slope_of_tanh(c)),
    )
    scan = None if by_H is None else user(by_H, "Scan", 2)
    if scan is None or factors is None or tuple(scan.inputs[2:5]) != (by_H, factors, f):
        return None
    return scan if _goes_back(scan, R, 2, ["Mul", "Add", "Concat", "Mul", "MatMul", "Mul"]) else None


def _find_gru_gradient(
    R: Value | None, hidden: Value, z: Value, r: Value, h: Value, inner: Value
) -> tuple[ir.Node, Value] | None:
    """Return the Scan over da = (dH, dH, dH) factors, and the gradient of X W^T + b; None for anything else."""
    Y = _made("Unsqueeze", hidden)
    states = [] if Y is None else [u.node.outputs[0] for u in Y.uses() if u.node.op_type == "Squeeze"]
    differences = (_made("Sub", _before(state), h) for state in states)
    difference = next((d for d in differences if d is not None), None)
    by_h = _made("Mul", _one_minus(z), _slope_of_tanh(h))
    factors = _made(
        "Concat",
        _made("Mul", difference, _slope_of_sigmoid(z)),
        _made("Mul", by_h, _made("Mul", inner, _slope_of_sigmoid(r))),
        _made("Mul", by_h, r),
    )
    scan = None if factors is None else user(factors, "Scan", 1)
    if scan is None or scan.inputs[2] is not z:
        return None
    ops = ["Concat", "Mul", "MatMul", "Mul", "Add"] + ([] if len(scan.inputs) > 3 else ["Identity"])
    if not _goes_back(scan, R, 1, ops):
        return None
    split, dh = user(scan.outputs[1], "Split"), _made("Mul", scan.outputs[2], by_h)
    dX = None if split is None else _made("Concat", *split.outputs[:2], dh)
    return None if dX is None or len(scan.outputs[2].uses()) != 1 else (scan, dX)


def _goes_back(scan: ir.Node, R: Value | None, states: int, ops: list[str]) -> bool:
    """Return whether a Scan goes back in time by these operators, with the product with R."""
    for name in ("scan_input_directions", "scan_output_directions"):
        if set(scan.attributes[name].as_ints()) != {1}:
            return False
    body = list(scan.attributes["body"].as_graph())
    given = len(scan.inputs) == (6 if states == 2 else 4)
    if sorted(n.op_type for n in body) != sorted([*ops, *(["Add"] if given else [])]):
        return False
    weight = next(n.inputs[1] for n in body if n.op_type == "MatMul")
    squeezed = None if weight is None else weight.producer()
    return squeezed is not None and squeezed.op_type == "Squeeze" and squeezed.inputs[0] is R


def _made(op_type: str, *inputs: Value | None) -> Value | None:
    """Return what an operator makes of these inputs; None if there is no such node, or an input is None."""
    if inputs[0] is None or None in inputs:
        return None
    for use in inputs[0].uses():
        node = use.node
        if node.op_type == op_type and tuple(node.inputs[: len(inputs)]) == inputs:
            return node.outputs[0]
    return None


def _one_minus(value: Value | None) -> Value | None:
    for use in () if value is None else value.uses():
        one = walk.constant_of(use.node.inputs[0]) if use.node.op_type == "Sub" and use.idx == 1 else None
        if one is not None and one.size == 1 and one.item() == 1:
            return use.node.outputs[0]
    return None


def _slope_of_sigmoid(y: Value | None) -> Value | None:
    return _made("Mul", y, _one_minus(y))


def _slope_of_tanh(y: Value | None) -> Value | None:
    return _one_minus(_made("Mul", y, y))


def _before(states: Value | None) -> Value | None:
    """Return the states one step later: behind the first state, or behind zeros."""
    kept = None if states is None else _made("Slice", states)
    for use in () if kept is None else kept.uses():
        if (use.node.op_type, use.idx) in (("Concat", 1), ("Pad", 0)):
            return use.node.outputs[0]
    return None
