"""Distillation: learn the outputs of a larger network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from onward.arguments import check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, Loss, Scale, shape_of
from onward.losses.bce_with_logits import softplus_of_negative
from onward.losses.cross_entropy import class_axis
from onward.losses.mse import MSE


@dataclasses.dataclass(frozen=True)
class Distillation(Loss):
    """α·T²·Σ q·(log q - log p) + (1 - α)·loss, with p and q the softmax of the student's and the teacher's logits / T.

    Hinton et al. 2015: the divergence is the mean over samples (and positions), T the `temperature`. With
    `activation="sigmoid"`, each number has its own two classes, and the mean is over all numbers. The teacher is a
    second ONNX file: `make_trainable(net, teacher="big.onnx", loss=Distillation())`. It becomes frozen nodes of the
    training algorithm, reads the same inputs, and is never part of the inference model.

    Args:
        loss: the loss of the labels: a loss of `onward.losses` or its name. It is not used, and there are no labels,
            if alpha is 1.
        temperature: T.
        alpha: α, from 0 to 1.
        axis: the axis of the classes, 1 or -1.
        activation: "softmax", or "sigmoid" for classes that do not exclude each other, and for masks.
        teacher_output: the teacher's logits (default: its only output; an activation at its end is left out).
        features: {value of the student: value of the teacher}: adds `feature_weight` times their mean squared error.
        feature_weight: see `features`.
        inputs: {input of the teacher: input of the student}, where names and order do not tell.
    """

    loss: Any = "cross_entropy"
    temperature: float = 4.0
    alpha: float = 0.5
    axis: int = 1
    activation: str = "softmax"
    teacher_output: str | None = None
    features: Mapping[str, str] = dataclasses.field(default_factory=dict)
    feature_weight: float = 1.0
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reads_teacher: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, "Distillation", above=0.0)
        check_number("alpha", self.alpha, "Distillation", low=0.0, high=1.0)
        check_number("feature_weight", self.feature_weight, "Distillation", low=0.0)
        check_name("activation", self.activation, ("softmax", "sigmoid"), place="loss `Distillation`")
        for name in ("features", "inputs"):
            if not isinstance(getattr(self, name), Mapping):
                raise ArgumentError(
                    Diagnostic(
                        A101, f"`{name}` of `Distillation` is not a mapping", found=repr(getattr(self, name))[:100]
                    )
                )
        if isinstance(self.loss, str):
            from onward.losses import by_name

            object.__setattr__(self, "loss", by_name(self.loss))
        if self.alpha < 1 and (not isinstance(self.loss, Loss) or self.loss.reads_teacher):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "`loss` of `Distillation` is not a loss of labels",
                    found=repr(self.loss)[:200],
                    needed="a loss of onward.losses, or its name",
                )
            )

    def expects(self) -> Scale | None:
        own = None if self.alpha == 1 else self.loss.expects()
        return own or (Scale.SOFTMAX_LOGITS if self.activation == "softmax" else Scale.SIGMOID_LOGITS)

    @property
    def teacher_values(self) -> list[str | None]:
        """The values of the teacher that it reads; None means the logits."""
        return [self.teacher_output, *self.features.values()]

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        if self.activation == "softmax":
            axis, shape = class_axis(outputs[0], self.axis, self), shape_of(outputs[0], self)
            if shape[axis] == 1:
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        f"the softmax over axis {axis} of output `{outputs[0].name}` is 1 everywhere",
                        place="loss `Distillation`",
                        found=f"shape {list(shape)}",
                        hint='use activation="sigmoid" for one class',
                    )
                )
        if self.alpha == 1:
            return []
        found: list[LabelSpec] | None = self.loss.labels(outputs[:1])
        return found

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        """Return the loss of the student's output and features, followed by those of the teacher."""
        half = len(outputs) // 2
        ours, theirs = outputs[:half], outputs[half:]
        total = op.Mul(self._divergence(op, ours[0], theirs[0]), self.alpha * self.temperature**2)
        if self.alpha < 1:
            total = op.Add(total, op.Mul(self.loss.emit(op, ours[:1], labels), 1.0 - self.alpha))
        for own, given in zip(ours[1:], theirs[1:], strict=True):
            distance = MSE().emit(op, [own], [op.CastLike(given, own)])
            total = op.Add(total, op.Mul(distance, self.feature_weight))
        return total

    def _divergence(self, op: Builder, own: Value, given: Value) -> Value:
        shaped = own
        given = op.Mul(op.CastLike(given, own), 1.0 / self.temperature)
        own = op.Mul(own, 1.0 / self.temperature)
        if self.activation == "sigmoid":  # q·(log q - log p) + (1 - q)·(log(1 - q) - log(1 - p)), in logits
            distance = op.Mul(op.Sigmoid(given), op.Sub(given, own))
            spread = op.Sub(softplus_of_negative(op, op.Neg(own)), softplus_of_negative(op, op.Neg(given)))
            return op.ReduceMean(op.Add(distance, spread), keepdims=0)
        axis = class_axis(shaped, self.axis, self)
        p, q = (op.LogSoftmax(v, axis=axis) for v in (own, given))
        return op.ReduceMean(op.ReduceSum(op.Mul(op.Exp(q), op.Sub(q, p)), [axis], keepdims=0), keepdims=0)

    def least_opset(self) -> int:
        return 1 if self.alpha == 1 else int(self.loss.least_opset())

    def functions(self) -> list[ir.Function]:
        return [] if self.alpha == 1 else list(self.loss.functions())
