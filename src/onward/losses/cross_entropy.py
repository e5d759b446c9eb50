"""Softmax cross entropy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.arguments import check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, Loss, ReducedLoss, Scale, element_type, shape_of

TARGETS = ("index", "probability")


@dataclasses.dataclass(frozen=True)
class CrossEntropy(ReducedLoss):
    """Cross entropy of logits against class indices or probabilities, as `torch.nn.functional.cross_entropy`.

    Args:
        weight: one weight per class.
        ignore_index: a label to ignore; "mean" does not count such elements. None: no such label.
        label_smoothing: the share of each target that is spread over all classes, from 0 to 1.
        axis: the axis of the classes, 1 as in ONNX and PyTorch, or -1 as in Keras.
        targets: "index" (int64 labels, no class axis) or "probability" (labels of the logits' shape).
        reduction: "mean" divides by the sum of the targets' weights (index) or by their number (probability).
    """

    weight: Sequence[float] | None = None
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    axis: int = 1
    targets: str = "index"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ignore_index(self.ignore_index, "CrossEntropy")
        check_number("label_smoothing", self.label_smoothing, "CrossEntropy", low=0.0, high=1.0)
        check_name("kind of targets", self.targets, TARGETS, place="loss `CrossEntropy`")
        if self.targets == "probability" and self.ignore_index is not None:
            raise ArgumentError(
                Diagnostic(A101, "`ignore_index` needs index targets", place="loss `CrossEntropy`", found=repr(self))
            )

    def expects(self) -> Scale:
        return Scale.SOFTMAX_LOGITS

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        shape = list(shape_of(outputs[0], self))
        axis = class_axis(outputs[0], self.axis, self)
        if shape[axis] == 1:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"output `{outputs[0].name}` has one class, so its cross entropy is 0 whatever it says",
                    place="loss `CrossEntropy`",
                    found=f"shape {shape}",
                    needed="two classes or more",
                    hint="for one score that says yes or no, use the loss `bce_with_logits`, or `bce` behind a Sigmoid",
                )
            )
        if self.targets == "probability":
            return [LabelSpec(element_type(outputs[0], self), tuple(shape))]
        del shape[axis]
        return [LabelSpec(ir.DataType.INT64, tuple(shape))]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        scores, label = outputs[0], labels[0]
        axis = class_axis(scores, self.axis, self)
        weight = class_weight(op, self.weight, scores, axis, self)
        if self.targets == "probability":
            return self._probability(op, scores, label, axis, weight)
        scores = classes_second(op, scores, axis)
        if self.label_smoothing == 0.0:
            return op.SoftmaxCrossEntropyLoss(
                scores, label, weight, ignore_index=self.ignore_index, reduction=self.reduction
            )
        return self._smoothed(op, scores, label, weight)

    def _smoothed(self, op: Builder, scores: Value, label: Value, weight: Value | None) -> Value:
        """Return (1 - ε) · nll + ε/K · Σ_c -w_c log p_c, both terms reduced in the same way."""
        rank = len(shape_of(scores, self))
        logarithms = op.LogSoftmax(scores, axis=1)
        nll = op.NegativeLogLikelihoodLoss(
            logarithms, label, weight, ignore_index=self.ignore_index, reduction=self.reduction
        )
        weighted = logarithms
        if weight is not None:
            weighted = op.Mul(logarithms, op.Reshape(weight, [1, -1] + [1] * (rank - 2)))
        spread = op.Neg(op.ReduceMean(weighted, [1], keepdims=0))
        counted = None
        if self.ignore_index is not None:
            counted = op.Not(op.Equal(label, self.ignore_index))
            spread = op.Where(counted, spread, 0.0)
        if self.reduction == "sum":
            spread = op.ReduceSum(spread, keepdims=0)
        elif self.reduction == "mean":
            total = op.ReduceSum(spread, keepdims=0)
            if weight is not None:
                index = label if counted is None else op.Where(counted, label, 0)
                weights = op.Gather(weight, index)
                if counted is not None:
                    weights = op.Where(counted, weights, 0.0)
                spread_over = op.ReduceSum(weights, keepdims=0)
            elif counted is not None:
                spread_over = op.ReduceSum(op.CastLike(counted, total), keepdims=0)
            else:
                spread_over = op.CastLike(op.Size(label), total)
            spread = op.Div(total, spread_over)
        return op.Add(op.Mul(nll, 1.0 - self.label_smoothing), op.Mul(spread, self.label_smoothing))

    def _probability(self, op: Builder, scores: Value, label: Value, axis: int, weight: Value | None) -> Value:
        rank = len(shape_of(scores, self))
        logarithms = op.LogSoftmax(scores, axis=axis)
        target = label
        if self.label_smoothing:
            classes = op.CastLike(op.Gather(op.Shape(scores), axis, axis=0), scores)
            spread = op.Div(self.label_smoothing, classes)
            target = op.Add(op.Mul(label, 1.0 - self.label_smoothing), spread)
        product = op.Mul(logarithms, target)
        if weight is not None:
            product = op.Mul(product, op.Reshape(weight, [-1 if d == axis else 1 for d in range(rank)]))
        return self.reduce(op, op.Neg(op.ReduceSum(product, [axis], keepdims=0)))


def check_ignore_index(value: object, owner: str) -> None:
    """Check that `value` is a class number or None."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ArgumentError(
            Diagnostic(
                A101, f"`ignore_index` of `{owner}` is not a class number", found=repr(value), needed="a whole number"
            )
        )


def class_axis(scores: Value, axis: int, loss: Loss) -> int:
    """Return the class axis counted from the front."""
    rank = len(shape_of(scores, loss))
    if rank < 2 or not -rank <= axis < rank or axis % rank == 0:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"output `{scores.name}` has no class axis {axis}",
                place=f"loss `{type(loss).__name__}`",
                found=f"shape {list(shape_of(scores, loss))}",
                needed="at least two dimensions, with the batch as the first",
            )
        )
    return axis % rank


def classes_second(op: Builder, scores: Value, axis: int) -> Value:
    """Return `scores` with the class axis moved to position 1, where ONNX's losses expect it."""
    if axis == 1:
        return scores
    assert scores.shape is not None
    rank = len(scores.shape)
    moved = op.Transpose(scores, perm=[0, axis, *(d for d in range(1, rank) if d != axis)])
    order = [0, axis, *(d for d in range(1, rank) if d != axis)]
    moved.shape = ir.Shape([scores.shape[d] for d in order])
    return moved


def class_weight(
    op: Builder, weight: Sequence[float] | None, scores: Value, axis: int, loss: ReducedLoss, name: str = "weight"
) -> Value | None:
    """Return the class weights as a constant of the scores' type, or None."""
    if weight is None:
        return None
    array = np.asarray(weight, dtype=np.float64)
    classes = shape_of(scores, loss)[axis]
    if array.ndim != 1 or (isinstance(classes, int) and array.size != classes):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"`{name}` does not fit the classes",
                place=f"loss `{type(loss).__name__}`",
                found=f"weights of shape {list(array.shape)}",
                needed=f"one weight for each of the {classes} classes of output `{scores.name}`",
            )
        )
    return op.constant(array, element_type(scores, loss))
