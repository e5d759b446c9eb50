"""Combine the losses of several batches in an evaluation, so that the result does not depend on the batch size.

The mean loss over all samples is the mean over the batches, weighted by batch size, only if all samples have the same
weight. A loss with class weights or ignored labels divides by another number, and one with reduction="sum" does not
divide. Such a loss is a small expression over totals, which are numbers that add up over batches. The totals become
further outputs of the evaluate graph, and the program stores the expression:

    loss = Div(ReduceSum(losses), ReduceSum(weights))      expression ["Div", ["total", "…"], ["total", "…"]]

An expression is a number, ["total", output] (to be added up over the batches), ["value", output] (the same for each
batch), or [operator, argument, …] with one of `FUNCTIONS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph import shapes, walk
from onward.graph.builder import Builder, Names, Value
from onward.passes.base import Unit

Expression = Any  # JSON: a number, or a list that starts with a word

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Max": np.maximum,
    "Min": np.minimum,
}
_SAME = {"Identity", "Cast", "CastLike", "Squeeze", "Unsqueeze", "Reshape", "Flatten"}  # of a single number
_CLASS_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass
class Totals:
    """The expression of the loss, and the outputs it reads."""

    expression: Expression
    outputs: list[tuple[str, Value]]


def loss_totals(unit: Unit, loss: Value) -> Totals | None:
    """Return the loss as an expression over totals, and add the nodes that compute them to the graph.

    Return None if weighting batches by their size gives the exact mean. Also return None if the loss is not such an
    expression; the weighted mean is then an approximation.
    """
    trial = _Walk(unit, Names(unit.names.taken))
    trial.find(loss)
    trial.discard()
    if trial.expression is not None and trial.is_mean:
        return None  # the known shapes show it; inferring the others is slow
    shapes.infer_shapes(unit.model)
    found = _Walk(unit, unit.names)
    found.find(loss)
    if found.expression is None or found.is_mean:
        found.discard()
        return None
    unit.graph.extend(found.op.nodes)
    return Totals(found.expression, found.outputs)


def evaluate(expression: Expression, totals: Mapping[str, float], values: Mapping[str, float]) -> float:
    """Return the value of an expression.

    >>> evaluate(["Div", ["total", "sum"], ["total", "count"]], {"sum": 6.0, "count": 4.0}, {})
    1.5
    """

    def number(part: Expression) -> Any:
        if not isinstance(part, (list, tuple)):
            return float(part)
        word, *arguments = part
        if word in ("total", "value"):
            return (totals if word == "total" else values)[arguments[0]]
        return FUNCTIONS[word](*(number(a) for a in arguments))

    with np.errstate(all="ignore"):  # 0 / 0 is NaN: every label is ignored
        return float(number(expression))


class _BlackBoxError(Exception):
    """The loss is not a known expression over totals."""


class _Walk:
    def __init__(self, unit: Unit, names: Names) -> None:
        self.op = Builder(unit.opset, names, prefix="total/")
        self.outputs: list[tuple[str, Value]] = []
        self.is_mean = True
        """Whether the loss is linear in means over the samples, so that no totals are needed."""
        self._names = names
        self._data = set(unit.data)
        batched = [v for v in unit.data if _dimensions(v)]
        self._samples = batched[0] if batched else unit.data[0]
        self._batch = {_dimensions(v)[0] for v in batched} - {None}
        self._known: dict[Value, Expression] = {}
        self.expression: Expression = None

    def find(self, loss: Value) -> None:
        """Set `expression`; it stays None for a black box."""
        try:
            self.expression = self._of(loss)
        except _BlackBoxError:
            self.expression = None

    def discard(self) -> None:
        """Discard the new nodes, so that they do not count as uses of values."""
        for node in self.op.nodes:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)

    def _of(self, value: Value) -> Expression:
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: Value) -> Expression:
        constant = ir.convenience.get_const_tensor(value)
        if constant is not None and constant.size == 1:
            return float(constant.numpy().ravel()[0])
        if not self._reads_data(value):
            return self._output("value", value)
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx") or node.outputs[0] is not value:
            raise _BlackBoxError
        if node.op_type in _CLASS_LOSSES:
            return self._class_loss(node)
        if node.op_type in ("ReduceMean", "ReduceSum"):
            return self._reduced(node)
        if node.op_type == "Size":
            return self._counted(value, _input(node, 0))
        if node.op_type == "Gather" and _constant(node.inputs[1]) == 0:
            return self._length(value, _input(node, 0))
        if not _is_one_number(value):
            raise _BlackBoxError
        return self._arithmetic(node)

    def _reads_data(self, value: Value) -> bool:
        return value in self._data or any(v in self._data for n in walk.ancestors([value]) for v in walk.reads(n))

    def _output(self, word: str, value: Value) -> Expression:
        if not _is_one_number(value):
            raise _BlackBoxError
        name = self._names.unique(f"total/{len(self.outputs)}")
        copy = self.op.Identity(value)
        copy.type, copy.shape, copy.name = value.type, value.shape, name
        self.outputs.append((name, copy))
        return [word, name]

    def _arithmetic(self, node: ir.Node) -> Expression:
        if node.op_type in _SAME:
            return self._of(_input(node, 0))
        if node.op_type == "Sum":
            first, *rest = [self._of(_input(node, i)) for i in range(len(node.inputs))]
            for part in rest:
                first = ["Add", first, part]
            return first
        if node.op_type not in FUNCTIONS or (node.op_type in ("Max", "Min") and len(node.inputs) != 2):
            raise _BlackBoxError
        varies = [self._reads_data(_input(node, i)) for i in range(len(node.inputs))]
        linear = (
            node.op_type in ("Add", "Sub", "Neg")
            or (node.op_type == "Mul" and not all(varies))
            or (node.op_type == "Div" and not varies[1])
        )
        self.is_mean = self.is_mean and linear
        return [node.op_type, *(self._of(_input(node, i)) for i in range(len(node.inputs)))]

    def _class_loss(self, node: ir.Node) -> Expression:
        scores, labels = _input(node, 0), _input(node, 1)
        weight = node.inputs[2] if len(node.inputs) > 2 else None
        ignored = node.attributes.get_int("ignore_index", None)
        reduction = node.attributes.get_string("reduction", "mean")
        op = self.op
        if reduction == "none":
            raise _BlackBoxError
        if weight is None and ignored is None and reduction == "mean" and self._is_per_sample(labels):
            return self._mean(node.outputs[0])
        self.is_mean = False
        scores = self._wide(scores)
        weight = None if weight is None else self._wide(weight)
        make = op.SoftmaxCrossEntropyLoss if node.op_type == _CLASS_LOSSES[0] else op.NegativeLogLikelihoodLoss
        total = self._total(make(scores, labels, weight, ignore_index=ignored, reduction="sum"), scores.type)
        if reduction == "sum":
            return total
        if weight is None and ignored is None:
            return ["Div", total, self._total(op.Size(labels), ir.TensorType(ir.DataType.INT64))]
        counted = None if ignored is None else op.Not(op.Equal(labels, ignored))
        if weight is None:
            weights = op.CastLike(counted, scores)
        else:
            weights = op.Gather(weight, labels if counted is None else op.Where(counted, labels, 0))
            weights = weights if counted is None else op.Where(counted, weights, 0.0)
        return ["Div", total, self._total(op.ReduceSum(weights, keepdims=0), scores.type)]

    def _reduced(self, node: ir.Node) -> Expression:
        elements = _input(node, 0)
        if not shapes.reduces_all(node) or not self._grows_with_the_batch(elements):
            raise _BlackBoxError
        if node.op_type == "ReduceMean" and self._is_per_sample(elements):
            return self._mean(node.outputs[0])
        self.is_mean = False
        elements = self._wide(elements)
        total = self._total(self.op.ReduceSum(elements, keepdims=0), elements.type)
        if node.op_type == "ReduceSum":
            return total
        return ["Div", total, self._total(self.op.Size(elements), ir.TensorType(ir.DataType.INT64))]

    def _mean(self, value: Value) -> Expression:
        """Return the expression of a mean over samples of equal weight: its total is the mean times the batch size."""
        value = self._wide(value)
        samples = self.op.Gather(self.op.Shape(self._samples), 0, axis=0)
        times = self.op.Mul(value, self.op.CastLike(samples, value))
        return ["Div", self._total(times, value.type), self._total(samples, ir.TensorType(ir.DataType.INT64))]

    def _wide(self, value: Value) -> Value:
        """Return the value in a type that can hold a sum; float16 ends at 65504."""
        return self.op.cast(value, ir.DataType.FLOAT) if value.dtype in _HALVES else value

    def _counted(self, value: Value, of: Value) -> Expression:
        if not self._grows_with_the_batch(of):
            raise _BlackBoxError
        self.is_mean = False
        return self._output("total", value)

    def _length(self, value: Value, shape: Value) -> Expression:
        """Return the expression of the first dimension of a value, which is Gather(Shape(x), 0)."""
        node = shape.producer()
        if node is None or node.op_type != "Shape" or not self._starts_with_the_batch(_input(node, 0)):
            raise _BlackBoxError
        self.is_mean = False
        return self._output("total", value)

    def _total(self, value: Value, kind: ir.TypeProtocol | None) -> Expression:
        value.type, value.shape = kind, ir.Shape([])
        return self._output("total", value)

    def _starts_with_the_batch(self, value: Value) -> bool:
        return bool(_dimensions(value)) and _dimensions(value)[0] in self._batch

    def _is_per_sample(self, value: Value) -> bool:
        """Return whether each sample has the same number of elements."""
        return self._starts_with_the_batch(value) and all(isinstance(d, int) for d in _dimensions(value)[1:])

    def _grows_with_the_batch(self, value: Value) -> bool:
        """Return whether the elements belong to samples, in order (and not to pairs of samples, for example)."""
        dims = _dimensions(value)
        named = [d for d in dims if d in self._batch]
        return (len(named) == 1 and dims[0] == named[0]) or (not named and any(not isinstance(d, int) for d in dims))


def _input(node: ir.Node, index: int) -> Value:
    value = node.inputs[index]
    if value is None:
        raise _BlackBoxError
    return value


def _dimensions(value: Value) -> Sequence[int | str | None]:
    return [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]


def _is_one_number(value: Value) -> bool:
    return value.shape is not None and all(d == 1 for d in _dimensions(value))


def _constant(value: Value | None) -> Any:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy().tolist()
