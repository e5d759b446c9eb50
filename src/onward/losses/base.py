"""The base classes of losses: ONNX operators that map the model's outputs and the labels to one value."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onward.arguments import check_name
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value

Dim = int | str | None
ANY_NUMBER = -1  # of outputs
REDUCTIONS = ("mean", "sum", "none")


class Scale(enum.Enum):
    """What the numbers are that a loss reads. Which activation it applies itself decides between the two logits."""

    SOFTMAX_LOGITS = "logits"
    SIGMOID_LOGITS = "logits, of which it takes the Sigmoid"
    LOG_PROBABILITIES = "log-probabilities"
    PROBABILITIES = "probabilities"


@dataclasses.dataclass(frozen=True)
class LabelSpec:
    """Element type and shape of one label input; `suffix` distinguishes several label inputs of one loss."""

    dtype: ir.DataType
    shape: tuple[Dim, ...]
    suffix: str = ""


class Loss(abc.ABC):
    """One loss, written once as ONNX operators.

    `emit` creates the nodes; `labels` describes the label inputs for given outputs. Losses can be added and scaled:
    `MSE() + 0.1 * L1()` is a loss over the same output and labels.
    """

    num_outputs: ClassVar[int] = 1
    reads_teacher: ClassVar[bool] = False
    """Whether it also reads values of a second model: `make_trainable(teacher=...)`."""

    @abc.abstractmethod
    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        """Return the type and shape of each label input that the loss reads; None if the caller must state them."""

    @abc.abstractmethod
    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        """Return the loss of `outputs` against `labels`."""

    def expects(self) -> Scale | None:
        """Return the scale of the numbers that the loss reads; None where any scale has a meaning."""
        return None

    def least_opset(self) -> int:
        """Return the least opset that the emitted nodes need; the model is upgraded to it."""
        return 1

    def functions(self) -> list[ir.Function]:
        """Return the model-local functions that the emitted nodes call."""
        return []

    def __add__(self, other: Loss) -> Loss:
        from onward.losses.weighted import Weighted

        return Weighted(Weighted.of(self).terms + Weighted.of(other).terms)

    def __mul__(self, weight: float) -> Loss:
        from onward.losses.weighted import Weighted

        return Weighted.of(self).scaled(weight)

    __rmul__ = __mul__


@dataclasses.dataclass(frozen=True)
class ReducedLoss(Loss):
    """A loss with a `reduction`: "mean" over all elements, "sum", or "none"."""

    _: dataclasses.KW_ONLY
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_name("reduction", self.reduction, REDUCTIONS, place=f"loss `{type(self).__name__}`")

    def reduce(self, op: Builder, elements: Value) -> Value:
        """Return `elements`, reduced according to `reduction`."""
        if self.reduction == "none":
            return elements
        reducer: Callable[..., Value] = op.ReduceMean if self.reduction == "mean" else op.ReduceSum
        return reducer(elements, keepdims=0)


@dataclasses.dataclass(frozen=True)
class ElementwiseLoss(ReducedLoss):
    """A loss that compares each output element with the label element at the same position."""

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        return [LabelSpec(element_type(outputs[0], self), shape_of(outputs[0], self))]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        return self.reduce(op, self.elements(op, outputs[0], labels[0]))

    @abc.abstractmethod
    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        """Return the loss of each element."""


def mean_of(op: Builder, elements: Value, counted: Value) -> Value:
    """Return the mean of the elements that count (a condition of the same shape); 0 if none does."""
    total = op.ReduceSum(op.Where(counted, elements, 0.0), keepdims=0)
    return op.Div(total, op.Max(op.ReduceSum(op.CastLike(counted, elements), keepdims=0), 1.0))


def one_hot(op: Builder, index: Value, count: Value | int, axis: int, dtype: ir.DataType) -> Value:
    """Return 1 at the place of each index along a new axis, else 0; an index out of range has no 1.

    Made with Equal: ONNX Runtime's OneHot has kernels for some types only.
    """
    places = op.Range(0, count, 1) if isinstance(count, Value) else op.constant(np.arange(count))
    after = 0 if axis < 0 else len(index.shape or ()) - axis
    places = op.Unsqueeze(places, list(range(1, after + 1))) if after else places
    return op.Cast(op.Equal(op.Unsqueeze(index, [axis]), places), to=dtype)


def without_gradient(op: Builder, value: Value) -> Value:
    """Return `value`, a number from 0 to 1, as a constant for the gradient.

    ONNX has no operator for that, but the slope of Round is 0. The grain is finer than the last bit of 1.
    """
    bits = {ir.DataType.DOUBLE: 60, ir.DataType.FLOAT16: 14}.get(value.dtype or ir.DataType.FLOAT, 30)
    return op.Mul(op.Round(op.Mul(value, 2.0**bits)), 2.0**-bits)


def smallest(dtype: ir.DataType | None) -> float:
    """Return a small positive number of an element type: far above its smallest, so that 1/x and x² stay finite.

    >>> smallest(ir.DataType.FLOAT), smallest(ir.DataType.DOUBLE)
    (1e-12, 1e-30)
    """
    return {ir.DataType.DOUBLE: 1e-30, ir.DataType.FLOAT16: 1e-4}.get(dtype or ir.DataType.FLOAT, 1e-12)


def element_type(value: Value, loss: Loss) -> ir.DataType:
    """Return the element type of a model output; an unknown one is an error."""
    if value.dtype is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the element type of output `{value.name}` is not known",
                place=f"loss `{type(loss).__name__}`",
                hint="give the model's output a type, or pass label={name: (dtype, shape)}",
            )
        )
    return value.dtype


def shape_of(value: Value, loss: Loss) -> tuple[Dim, ...]:
    """Return the shape of a model output; an unknown rank is an error."""
    if value.shape is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the number of dimensions of output `{value.name}` is not known",
                place=f"loss `{type(loss).__name__}`",
                hint="give the model's output a shape (symbolic dimensions are allowed)",
            )
        )
    symbols = [d if isinstance(d, int) else d.value for d in value.shape]
    return tuple(None if str(d).startswith("unk__") else d for d in symbols)  # a symbol that shape inference created
