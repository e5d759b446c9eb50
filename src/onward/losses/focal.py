"""Focal losses: cross entropy that counts easy examples less."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.arguments import check_number, is_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import ElementwiseLoss, LabelSpec, ReducedLoss, Scale, mean_of, shape_of, smallest
from onward.losses.bce import BCE
from onward.losses.bce_with_logits import softplus_of_negative
from onward.losses.cross_entropy import check_ignore_index, class_axis, class_weight, classes_second


@dataclasses.dataclass(frozen=True)
class Focal(ReducedLoss):
    """-α_y · (1 - p_y)^γ · log p_y with p the softmax of the logits: Lin et al. 2017, for classes that exclude others.

    Args:
        gamma: γ; 0 is cross entropy, a larger number counts well classified examples less.
        alpha: one weight per class; None: all are 1. "mean" does not divide by them.
        ignore_index: a label to ignore; "mean" does not count such elements. None: no such label.
        axis: the axis of the classes, 1 or -1.
    """

    gamma: float = 2.0
    alpha: Sequence[float] | None = None
    ignore_index: int | None = None
    axis: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("gamma", self.gamma, "Focal", low=0.0)
        check_ignore_index(self.ignore_index, "Focal")
        if self.alpha is not None and not isinstance(self.alpha, Sequence | np.ndarray):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "`alpha` of `Focal` is not a list",
                    found=repr(self.alpha),
                    needed="one weight per class",
                    hint="for two classes with one logit, use BinaryFocal (`binary_focal`): its alpha is one number",
                )
            )

    def expects(self) -> Scale:
        return Scale.SOFTMAX_LOGITS

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        shape = list(shape_of(outputs[0], self))
        del shape[class_axis(outputs[0], self.axis, self)]
        return [LabelSpec(ir.DataType.INT64, tuple(shape))]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        scores, label = outputs[0], labels[0]
        axis = class_axis(scores, self.axis, self)
        weight = class_weight(op, self.alpha, scores, axis, self, name="alpha")
        counted = None if self.ignore_index is None else op.Not(op.Equal(label, self.ignore_index))
        elements = op.SoftmaxCrossEntropyLoss(  # which refuses a label that is no class; a Gather takes -1 for the last
            classes_second(op, scores, axis), label, ignore_index=self.ignore_index, reduction="none"
        )
        elements.shape = label.shape
        if self.gamma:
            elements = op.Mul(modulation(op, op.Sub(1.0, op.Exp(op.Neg(elements))), self.gamma), elements)
        if counted is not None:
            label = op.Where(counted, label, 0)
        if weight is not None:
            elements = op.Mul(op.Gather(weight, label), elements)
        if counted is None:
            return self.reduce(op, elements)
        if self.reduction == "mean":
            return mean_of(op, elements, counted)
        return self.reduce(op, op.Where(counted, elements, 0.0))


@dataclasses.dataclass(frozen=True)
class BinaryFocal(ElementwiseLoss):
    """α_t · (1 - p_t)^γ · (-log p_t) with p the sigmoid of the logit, and p_t = p where the label is 1, else 1 - p.

    The `sigmoid_focal_loss` of torchvision: labels are 0 and 1, one per logit, so several classes may hold at once.

    Args:
        gamma: γ; 0 is binary cross entropy.
        alpha: the weight of label 1, from 0 to 1, where label 0 has 1 - alpha; None: both are 1.
        logits: False if the output holds probabilities: the logarithms are then clamped at -100.
    """

    gamma: float = 2.0
    alpha: float | None = 0.25
    logits: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("gamma", self.gamma, "BinaryFocal", low=0.0)
        if self.alpha is not None:
            check_number("alpha", self.alpha if is_number(self.alpha) else None, "BinaryFocal", low=0.0, high=1.0)

    def expects(self) -> Scale:
        return Scale.SIGMOID_LOGITS if self.logits else Scale.PROBABILITIES

    def elements(self, op: Builder, output: Value, label: Value) -> Value:
        if self.logits:
            elements = op.Add(op.Mul(op.Sub(1.0, label), output), softplus_of_negative(op, output))
            yes, no = op.Sigmoid(output), op.Sigmoid(op.Neg(output))  # 1 - p without cancellation
        else:
            elements, yes, no = BCE().elements(op, output, label), output, op.Sub(1.0, output)
        if self.gamma:
            wrong = op.Add(op.Mul(yes, op.Sub(1.0, label)), op.Mul(no, label))
            elements = op.Mul(modulation(op, wrong, self.gamma), elements)
        if self.alpha is not None:
            share = op.Add(op.Mul(label, 2.0 * self.alpha - 1.0), 1.0 - self.alpha)
            elements = op.Mul(share, elements)
        return elements


def modulation(op: Builder, wrong: Value, gamma: float) -> Value:
    """Return wrong^γ with a finite slope at 0, where the slope of a root is infinite."""
    if gamma == 1:
        return wrong
    if gamma == 2:
        return op.Mul(wrong, wrong)
    if gamma < 1:
        wrong = op.Max(wrong, smallest(wrong.dtype))
    return op.Pow(wrong, op.constant(gamma, wrong.dtype))
