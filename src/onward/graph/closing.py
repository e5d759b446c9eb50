"""Find the activation that a value comes out of: what a model ends in, and the logits in front of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onward.graph.walk import constant_of

PASSING = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Dropout", "Clip"})
"""Operators that pass numbers on: they change the type, the shape, the order or the outermost values, nothing else."""

ACTIVATIONS = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid"})
_EPSILON = 1e-3  # what is added to probabilities to keep their logarithm finite is not larger
_LOGARITHMS = {"Softmax": "LogSoftmax", "Sigmoid": "LogSigmoid"}


@dataclasses.dataclass(frozen=True)
class Closing:
    """The activation that a value comes out of.

    `node` computes it, and `before` is the value in front of it: the logits. `kind` is Softmax, LogSoftmax, Sigmoid,
    LogSigmoid (Log of Sigmoid) or HardSigmoid. Log of Softmax is a LogSoftmax; its `node` is the Softmax. Softmax may
    also be written out as Exp, ReduceSum and Div, and Sigmoid as 1 / (1 + exp(-x)); the `node` is the last of them.
    SigmoidPair is the two columns 1 - p and p, which scikit-learn's classifiers of two classes give; its `node` is the
    Concat, and `before` has one column. A small number that is added to probabilities, so that their logarithm is
    finite, changes nothing.
    """

    kind: str
    node: ir.Node
    before: ir.Value

    @property
    def axis(self) -> int:
        """The axis over which a Softmax or LogSoftmax goes; of all others the last."""
        if self.kind not in ("Softmax", "LogSoftmax"):
            return -1
        if self.node.op_type != "Div":
            return self.node.attributes.get_int("axis", -1)
        axes = constant_of(_sum_of(self.node.inputs[1]).inputs[1])  # type: ignore[union-attr]  # it is a Softmax
        return -1 if axes is None or axes.size != 1 else int(axes.reshape(-1)[0])

    @property
    def gives_probabilities(self) -> bool:
        """Whether it gives numbers from 0 to 1."""
        return self.kind in ("Softmax", "Sigmoid", "SigmoidPair", "HardSigmoid")


def maker(value: ir.Value) -> ir.Node | None:
    """Return the node that computes the numbers of a value; nodes that only pass them on are skipped."""
    node = value.producer()
    while node is not None and _is_standard(node) and node.op_type in PASSING and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def closing(value: ir.Value) -> Closing | None:
    """Return the activation that `value` comes out of, also through nodes that only pass numbers on; None without one.

    >>> x = ir.Value(name="x")
    >>> softmax = ir.node("Softmax", [x])
    >>> found = closing(ir.node("Identity", softmax.outputs).outputs[0])
    >>> found.kind, found.before.name
    ('Softmax', 'x')
    """
    node = maker(value)
    if node is None or not _is_standard(node) or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type in ACTIVATIONS:
        return Closing(node.op_type, node, _as_it_was(node.inputs[0]))
    if node.op_type in ("Div", "Reciprocal"):
        return _by_hand(node)
    if node.op_type in ("Add", "Sub"):
        inner = None if (kept := _without_epsilon(node)) is None else closing(kept)
        return inner if inner is not None and inner.gives_probabilities else None
    if node.op_type == "Concat":
        sigmoid = _sigmoid_of_pair(node)
        return None if sigmoid is None else Closing("SigmoidPair", node, sigmoid.before)
    if node.op_type != "Log":
        return None
    inner = closing(node.inputs[0])
    return dataclasses.replace(inner, kind=_LOGARITHMS[inner.kind]) if inner and inner.kind in _LOGARITHMS else None


def _as_it_was(value: ir.Value) -> ir.Value:
    """Return the matrix that a Flatten makes a matrix again, as in a Softmax of an old opset; else `value`."""
    node = value.producer()
    if node is None or node.op_type != "Flatten" or node.attributes.get_int("axis", 1) != 1 or node.inputs[0] is None:
        return value
    shape = node.inputs[0].shape
    return node.inputs[0] if shape is not None and len(shape) == 2 else value


def softmax_by_hand(node: ir.Node) -> ir.Node | None:
    """Return the Exp of exp(x) / sum(exp(x)), which older exporters write for Softmax; None if `node` is no such."""
    total, top = (_sum_of(node.inputs[1]), node.inputs[0]) if node.op_type == "Div" else (None, None)
    before = top.producer() if total is not None and top is not None and total.inputs[0] is top else None
    return before if before is not None and before.op_type == "Exp" else None


def sigmoid_by_hand(node: ir.Node) -> ir.Value | None:
    """Return the x of 1 / (1 + exp(-x)) or of exp(x) / (1 + exp(x)); None if `node` is the last of neither."""
    if node.op_type == "Reciprocal":
        top, bottom = None, node.inputs[0]
    elif node.op_type == "Div":
        top, bottom = node.inputs[0], node.inputs[1]
    else:
        return None
    total = None if bottom is None else bottom.producer()
    exponential = _other_than(total, 1.0) if total is not None and total.op_type == "Add" else None
    exp = None if exponential is None else exponential.producer()
    if exp is None or exp.op_type != "Exp" or exp.inputs[0] is None:
        return None
    if top is not None and top is exponential:
        return exp.inputs[0]
    return _negated(exp.inputs[0]) if top is None or _is_number(top, 1.0) else None


def normalised(node: ir.Node) -> ir.Value | None:
    """Return the x of x / sum(|x|), as scikit-learn's Normalizer writes it; None if `node` is no such Div."""
    top, bottom = (node.inputs[0], node.inputs[1]) if node.op_type == "Div" else (None, None)
    total = None if bottom is None else bottom.producer()
    if total is not None and total.op_type == "Where" and _is_number(total.inputs[1], 1.0):  # rows of zeros stay
        total = None if total.inputs[2] is None else total.inputs[2].producer()
    summed = total is not None and total.op_type in ("ReduceL1", "ReduceSum") and total.inputs[0] is top
    return top if summed else None


def _by_hand(node: ir.Node) -> Closing | None:
    """Return the Softmax or Sigmoid that is written out and whose last node is `node`."""
    if (shares := normalised(node)) is not None:
        inner = closing(shares)
        if inner is not None and inner.kind == "Softmax":
            return inner  # its sum is 1 already
    exponential = softmax_by_hand(node)
    if exponential is not None:
        return None if exponential.inputs[0] is None else Closing("Softmax", node, exponential.inputs[0])
    before = sigmoid_by_hand(node)
    return None if before is None else Closing("Sigmoid", node, before)


def _negated(value: ir.Value) -> ir.Value | None:
    """Return the x of a value that is -x: Neg, a product with -1, or 0 - x."""
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Neg":
        return node.inputs[0]
    if node.op_type == "Mul":
        return _other_than(node, -1.0)
    return node.inputs[1] if node.op_type == "Sub" and _is_number(node.inputs[0], 0.0) else None


def _other_than(node: ir.Node, number: float) -> ir.Value | None:
    """Return the input of a node of two inputs that is not the constant `number`; None if neither is."""
    first, second = node.inputs
    return second if _is_number(first, number) else first if _is_number(second, number) else None


def _is_number(value: ir.Value | None, number: float) -> bool:
    array = constant_of(value)
    return array is not None and array.size > 0 and bool(np.all(array == number))


def _without_epsilon(node: ir.Node) -> ir.Value | None:
    """Return the value to which Add or Sub adds one very small number; None if it is not so."""
    for index in (0, 1) if node.op_type == "Add" else (1,):
        array = constant_of(node.inputs[index])
        if array is not None and array.size == 1 and array.dtype.kind == "f" and abs(float(array.item())) <= _EPSILON:
            return node.inputs[1 - index]
    return None


def reduction_of(value: ir.Value | None) -> ir.Node | None:
    """Return the ReduceSum or ReduceMax that `value` is, perhaps in another shape; None if it is none."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in ("Reshape", "Expand", "Unsqueeze", "Identity", "Max"):
        before = node.inputs[0]
        if node.op_type == "Max":  # with -inf
            before = next((v for v in node.inputs if v is not None and constant_of(v) is None), None)
        node = None if before is None else before.producer()
    return node if node is not None and node.op_type in ("ReduceSum", "ReduceMax") else None


def _sum_of(value: ir.Value | None) -> ir.Node | None:
    node = reduction_of(value)
    return node if node is not None and node.op_type == "ReduceSum" else None


def _sigmoid_of_pair(node: ir.Node) -> Closing | None:
    """Return the Sigmoid p behind the Concat of 1 - p and p."""
    if len(node.inputs) != 2 or node.inputs[1] is None:
        return None
    other = None if node.inputs[0] is None else node.inputs[0].producer()
    found = closing(node.inputs[1])
    if other is None or other.op_type != "Sub" or found is None or found.kind != "Sigmoid":
        return None
    one = constant_of(other.inputs[0])
    same = other.inputs[1] is not None and (other.inputs[1] is node.inputs[1] or maker(other.inputs[1]) is found.node)
    return found if one is not None and np.all(one == 1) and same else None


def logits_of(value: ir.Value) -> ir.Value:
    """Return the value in front of the activation that `value` comes out of; `value` itself without one."""
    found = closing(value)
    return value if found is None else found.before


def _is_standard(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx")
