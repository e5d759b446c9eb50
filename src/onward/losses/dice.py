"""Dice and the base of the losses that compare regions."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.arguments import check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, ReducedLoss, Scale, element_type, one_hot, shape_of
from onward.losses.cross_entropy import check_ignore_index

ACTIVATIONS = ("sigmoid", "softmax", "none")
TARGETS = ("mask", "index")


@dataclasses.dataclass(frozen=True)
class RegionLoss(ReducedLoss):
    """A loss of a region's overlap with its label: one number per sample and class, or per class (`batch`).

    Args:
        activation: what turns the output into probabilities: "sigmoid", "softmax", or "none" if it holds them.
        targets: "mask" (numbers from 0 to 1 in the output's shape) or "index" (int64 classes, no class axis).
        smooth: added to numerator and denominator. It decides the loss of empty regions: an empty prediction of an
            empty label costs 0.
        batch: True measures each class once over the whole batch, False in each sample.
        background: False leaves class 0 out.
        ignore_index: with index targets, a label to leave out of all regions. None: no such label.
        axis: the axis of the classes, 1 or -1; None if the output has no such axis, as [N, height, width].
    """

    activation: str = "sigmoid"
    targets: str = "mask"
    smooth: float = 1.0
    batch: bool = False
    background: bool = True
    ignore_index: int | None = None
    axis: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        place = f"loss `{owner}`"
        check_name("activation", self.activation, ACTIVATIONS, place=place)
        check_name("kind of targets", self.targets, TARGETS, place=place)
        check_number("smooth", self.smooth, owner, low=0.0)
        check_ignore_index(self.ignore_index, owner)
        wrong = []
        if self.targets == "mask" and self.ignore_index is not None:
            wrong.append("`ignore_index` needs index targets")
        if self.axis is None:
            wrong += ["a softmax needs a class axis"] * (self.activation == "softmax")
            wrong += ["index targets need a class axis"] * (self.targets == "index")
            wrong += ["without a class axis there is no background class"] * (not self.background)
        if wrong:
            raise ArgumentError([Diagnostic(A101, message, place=place, found=repr(self)) for message in wrong])

    def expects(self) -> Scale:
        scales = {"sigmoid": Scale.SIGMOID_LOGITS, "softmax": Scale.SOFTMAX_LOGITS, "none": Scale.PROBABILITIES}
        return scales[self.activation]

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        shape = list(shape_of(outputs[0], self))
        axis = self._axis(outputs[0])
        if self.targets == "mask":
            return [LabelSpec(element_type(outputs[0], self), tuple(shape))]
        assert axis is not None
        del shape[axis]
        return [LabelSpec(ir.DataType.INT64, tuple(shape))]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        output, label = outputs[0], labels[0]
        axis = self._axis(output)
        rank = len(shape_of(output, self))
        p = output
        if self.activation == "sigmoid":
            p = op.Sigmoid(output)
        elif self.activation == "softmax":
            p = op.Softmax(output, axis=axis)
        t = label
        if self.targets == "index":
            p, t = self._regions(op, output, p, label, axis)
        if not self.background:
            last = np.iinfo(np.int64).max
            p, t = (op.Slice(v, [1], [last], [axis]) for v in (p, t))
        axes = [a for a in range(rank) if a != axis and (a > 0 or self.batch)]
        return self.reduce(op, self.regions(op, p, t, axes))

    @abc.abstractmethod
    def regions(self, op: Builder, p: Value, t: Value, axes: list[int]) -> Value:
        """Return the loss of each region: probabilities `p` and labels `t` are summed over `axes`."""

    def _regions(self, op: Builder, output: Value, p: Value, label: Value, axis: int | None) -> tuple[Value, Value]:
        """Return the probabilities and the labels as one mask per class, both 0 where the label is ignored.

        A label that is no class makes the loss NaN: masks without a 1 would be wrong in silence.
        """
        classes = op.Gather(op.Shape(output), axis, axis=0)
        assert axis is not None
        masks = one_hot(op, label, classes, axis, element_type(output, self))
        is_class = op.And(op.GreaterOrEqual(label, 0), op.Less(label, classes))
        masks = op.Div(masks, op.CastLike(op.Unsqueeze(is_class, [axis]), masks), name="labels_that_are_classes")
        if self.ignore_index is None:
            return p, masks
        counted = op.Not(op.Equal(label, self.ignore_index))
        mask = op.Unsqueeze(counted, [axis])
        return op.Where(mask, p, 0.0), op.Where(mask, masks, 0.0)

    def _axis(self, output: Value) -> int | None:
        shape = shape_of(output, self)
        rank = len(shape)
        least = 2 if self.axis is None else 3
        axis = self.axis
        if rank < least or (axis is not None and (not -rank <= axis < rank or axis % rank == 0)):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"output `{output.name}` does not hold regions",
                    place=f"loss `{type(self).__name__}`",
                    found=f"shape {list(shape)}, axis={axis}",
                    needed="the batch, the class axis that axis= names, and at least one axis of positions",
                    hint="axis=None for an output without a class axis, as [N, height, width]",
                )
            )
        if axis is None:
            return None
        axis %= rank
        if self.activation == "softmax" and shape[axis] == 1:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"the softmax over axis {axis} of output `{output.name}` is 1 everywhere",
                    place=f"loss `{type(self).__name__}`",
                    found=f"shape {list(shape)}",
                    hint='use activation="sigmoid" for one class',
                )
            )
        return axis


@dataclasses.dataclass(frozen=True)
class Dice(RegionLoss):
    """1 - (2·Σ p·t + s) / (Σ p + Σ t + s), with s = `smooth`: Milletari et al. 2016; `monai.losses.DiceLoss`.

    Args:
        squared: the denominator sums p² and t², as in the first paper.
        RegionLoss: `activation`, `targets`, `smooth`, `batch`, `background`, `ignore_index` and `axis`.
    """

    squared: bool = False

    def regions(self, op: Builder, p: Value, t: Value, axes: list[int]) -> Value:
        both = op.ReduceSum(op.Mul(p, t), axes, keepdims=0)
        if self.squared:
            p, t = op.Mul(p, p), op.Mul(t, t)
        total = op.Add(op.ReduceSum(p, axes, keepdims=0), op.ReduceSum(t, axes, keepdims=0))
        return op.Sub(1.0, ratio(op, op.Mul(both, 2.0), total, self.smooth))


def ratio(op: Builder, over: Value, under: Value, smooth: float) -> Value:
    """Return (over + smooth) / (under + smooth); 0 / 0 is 1, since an empty prediction of an empty label is right."""
    if smooth:
        return op.Div(op.Add(over, smooth), op.Add(under, smooth))
    empty = op.Equal(under, 0.0)
    return op.Where(empty, 1.0, op.Div(over, op.Where(empty, 1.0, under)))
