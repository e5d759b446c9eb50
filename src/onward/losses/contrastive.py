"""Contrastive losses: InfoNCE of two outputs, NT-Xent and supervised contrastive of one output with groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from onward.arguments import check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, Loss, ReducedLoss, element_type, mean_of, shape_of, smallest
from onward.losses.bce_with_logits import softplus_of_negative

_FAR = -1e4  # a similarity that e^x turns into 0, finite in float16 too


@dataclasses.dataclass(frozen=True)
class InfoNCE(ReducedLoss):
    """Cross entropy of similarities: row i of the first output belongs to row i of the second (van den Oord 2018).

    Reads two outputs of shape [N, D], such as the embeddings of pictures and texts, and no labels. The other rows of
    the batch are the negatives, so a batch of one has the loss 0.

    Args:
        temperature: the similarities are divided by it.
        symmetric: the mean of both directions, as in CLIP; False: from the first output to the second only.
        normalize: compare directions (cosine); False: plain products.
    """

    temperature: float = 0.07
    symmetric: bool = True
    normalize: bool = True
    num_outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("temperature", self.temperature, "InfoNCE", above=0.0)

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        for output in outputs:
            check_embedding(output, self)
        return []

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        a, b = (directions(op, v) if self.normalize else v for v in outputs)
        scores = op.Mul(op.MatMul(a, op.Transpose(b, perm=[1, 0])), 1.0 / self.temperature)
        own = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(a, start=0, end=1)), 1), [1])
        logarithms = [op.LogSoftmax(scores, axis=1)]
        if self.symmetric:
            logarithms.append(op.LogSoftmax(op.Transpose(scores, perm=[1, 0]), axis=1))
        each = [op.Squeeze(op.GatherElements(v, own, axis=1), [1]) for v in logarithms]
        elements = op.Mul(op.Sum(*each), -1.0 / len(each))
        return self.reduce(op, elements)


@dataclasses.dataclass(frozen=True)
class GroupLoss(Loss):
    """A loss of embeddings [N, D] with int64 labels [N]: rows with equal labels belong together.

    A negative label marks a row that has no partner; it is a negative of all others.
    """

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        return [LabelSpec(ir.DataType.INT64, (check_embedding(outputs[0], self)[0],))]

    def pairs(self, op: Builder, embedding: Value, label: Value) -> tuple[Value, Value]:
        """Return which rows are partners and which are negatives of each other, [N, N]; a row is neither to itself."""
        row, column = op.Unsqueeze(label, [1]), op.Unsqueeze(label, [0])
        same = op.And(op.Equal(row, column), op.GreaterOrEqual(row, 0))
        place = op.Range(0, op.Squeeze(op.Shape(embedding, start=0, end=1)), 1)
        self_ = op.Equal(op.Unsqueeze(place, [1]), op.Unsqueeze(place, [0]))
        return op.And(same, op.Not(self_)), op.Not(op.Or(same, self_))


@dataclasses.dataclass(frozen=True)
class NTXent(GroupLoss):
    """-log(e^s(i,j) / (e^s(i,j) + Σ_k e^s(i,k))), k over the negatives of i; the mean over pairs of partners.

    s is the cosine divided by `temperature`. SimCLR (Chen et al. 2020): the two views of a sample share a label.
    A batch without partners has the loss 0.
    """

    temperature: float = 0.5

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, "NTXent", above=0.0)

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        scores = _similarities(op, outputs[0], self.temperature)
        partner, negative = self.pairs(op, outputs[0], labels[0])
        # log(1 + Σ_k e^(s_ik - s_ij)) for each j: a row's largest negative keeps the exponents in range.
        others = op.ReduceLogSumExp(op.Where(negative, scores, _FAR), [1], keepdims=1)
        elements = softplus_of_negative(op, op.Sub(scores, others))
        return mean_of(op, elements, partner)


@dataclasses.dataclass(frozen=True)
class SupervisedContrastive(GroupLoss):
    """-mean_j log(e^s(i,j) / Σ_k e^s(i,k)), j over the partners of i, k over all others; the mean over rows i.

    s is the cosine divided by `temperature` (Khosla et al. 2020, L_out). Rows without a partner do not count.
    """

    temperature: float = 0.1

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, "SupervisedContrastive", above=0.0)

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        scores = _similarities(op, outputs[0], self.temperature)
        partner, negative = self.pairs(op, outputs[0], labels[0])
        everyone = op.ReduceLogSumExp(op.Where(op.Or(partner, negative), scores, _FAR), [1], keepdims=1)
        distance = op.Where(partner, op.Sub(everyone, scores), 0.0)
        count = op.ReduceSum(op.CastLike(partner, scores), [1], keepdims=0)
        rows = op.Div(op.ReduceSum(distance, [1], keepdims=0), op.Max(count, 1.0))
        return mean_of(op, rows, op.Greater(count, 0.0))


def check_embedding(output: Value, loss: Loss) -> tuple[int | str | None, ...]:
    """Return the shape of an output that holds one vector per row."""
    shape = shape_of(output, loss)
    element_type(output, loss)
    if len(shape) != 2:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"output `{output.name}` does not hold one vector per sample",
                place=f"loss `{type(loss).__name__}`",
                found=f"shape {list(shape)}",
                needed="two dimensions: batch, numbers",
                hint="let the loss read a value behind a Flatten or a pooling: output=",
            )
        )
    return shape


def directions(op: Builder, vectors: Value) -> Value:
    """Return vectors divided by their length; a zero vector stays zero, with a finite slope."""
    square = op.ReduceSum(op.Mul(vectors, vectors), [1], keepdims=1)
    return op.Div(vectors, op.Sqrt(op.Max(square, smallest(vectors.dtype))))


def _similarities(op: Builder, vectors: Value, temperature: float) -> Value:
    unit = directions(op, vectors)
    return op.Mul(op.MatMul(unit, op.Transpose(unit, perm=[1, 0])), 1.0 / temperature)
