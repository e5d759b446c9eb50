"""The base classes of losses: ONNX operators that map the model's outputs and the labels to one value."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import onnx_ir as ir

from onward.arguments import check_name
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value

Dim = int | str | None
REDUCTIONS = ("mean", "sum", "none")


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

    @abc.abstractmethod
    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        """Return the type and shape of each label input that the loss reads; None if the caller must state them."""

    @abc.abstractmethod
    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        """Return the loss of `outputs` against `labels`."""

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
