"""Connectionist temporal classification."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.arguments import check_count
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, ReducedLoss, Scale, element_type, shape_of

# Represents the logarithm of 0: differences of a true -∞ would be NaN. Sums of it stay finite in float32.
_NEVER = -1e30


@dataclasses.dataclass(frozen=True)
class CTC(ReducedLoss):
    """-log of the total probability of all alignments of the labels: `torch.nn.functional.ctc_loss`.

    The output holds log-probabilities, [T, N, C], or [N, T, C] with `time_axis=1`. There are three label inputs: the
    labels, int64 [N, S], padded with any value; the number of steps of each output; the number of labels of each
    sample. `Trainer` derives the lengths that the data does not have: every step counts, and a row of labels ends at
    its first negative number or its first blank. The recursion over time is one `Scan`.

    Args:
        blank: the index of the class that means no label: 0, as in PyTorch; Keras has it last.
        zero_infinity: the loss of impossible alignments is 0 instead of ∞.
        time_axis: 0 or 1.
        logits: the output holds logits instead of log-probabilities: what a `Softmax` at the end of a model reads.
        reduction: "mean" divides each loss by its number of labels first, as PyTorch does.
    """

    blank: int = 0
    zero_infinity: bool = False
    time_axis: int = 0
    logits: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("blank", self.blank, "CTC", low=0)
        if self.time_axis not in (0, 1):
            raise ArgumentError(
                Diagnostic(A101, "`time_axis` of `CTC` is out of range", found=repr(self.time_axis), needed="0 or 1")
            )

    def expects(self) -> Scale:
        return Scale.SOFTMAX_LOGITS if self.logits else Scale.LOG_PROBABILITIES

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        shape = shape_of(outputs[0], self)
        if len(shape) != 3:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"output `{outputs[0].name}` is not a sequence of class scores",
                    place="loss `CTC`",
                    found=f"shape {list(shape)}",
                    needed="time, batch, classes (time_axis=0), or batch, time, classes (time_axis=1)",
                    hint='name the value that holds the scores of each step: output="…"',
                )
            )
        batch = shape[1 - self.time_axis]
        kind = ir.DataType.INT64
        return [
            LabelSpec(kind, (batch, None)),
            LabelSpec(kind, (batch,), "output_lengths"),
            LabelSpec(kind, (batch,), "label_lengths"),
        ]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        scores = op.Transpose(outputs[0], perm=[1, 0, 2]) if self.time_axis == 1 else outputs[0]
        if self.logits:
            scores = op.LogSoftmax(scores, axis=2)
        dtype = element_type(outputs[0], self)
        label, times, counts = labels
        path = self._path(op, label)
        steps = op.Shape(scores, start=0, end=1)
        index = op.Expand(op.Unsqueeze(path, [0]), op.Concat(steps, np.array([1, 1]), axis=0))
        emitted = op.GatherElements(scores, index, axis=2)  # [T, N, 2S+1]
        start = op.Less(op.Range(0, op.Squeeze(op.Shape(path, start=1, end=2)), 1), 2)
        first = op.Where(start, op.Gather(emitted, 0, axis=0), op.constant(_NEVER, dtype))
        last = self._scan(op, path, emitted, first, times, op.Squeeze(steps), dtype)
        end = op.Mul(op.Unsqueeze(counts, [1]), 2)
        on_blank = op.Squeeze(op.GatherElements(last, end, axis=1), [1])
        on_label = op.Squeeze(op.GatherElements(last, op.Max(op.Sub(end, 1), 0), axis=1), [1])
        on_label = op.Where(op.Greater(counts, 0), on_label, op.constant(_NEVER, dtype))
        elements = op.Neg(_log_sum(op, on_blank, on_label))
        impossible = op.Greater(elements, -_NEVER / 10)
        elements = op.Where(impossible, op.constant(0.0 if self.zero_infinity else math.inf, dtype), elements)
        if self.reduction == "mean":
            elements = op.Div(elements, op.cast(op.Max(counts, 1), dtype))
        return self.reduce(op, elements)

    def _path(self, op: Builder, label: Value) -> Value:
        """Return blank, l₁, blank, l₂, …, blank: [N, 2S+1]."""
        known = op.Where(op.Less(label, 0), self.blank, label)
        blanks = op.Add(op.Mul(label, 0), self.blank)
        pairs = op.Concat(op.Unsqueeze(blanks, [2]), op.Unsqueeze(known, [2]), axis=2)
        # The last blank is appended separately so that it exists for labels of length 0 too.
        one = op.Expand(np.array([[self.blank]]), op.Concat(op.Shape(label, start=0, end=1), np.array([1]), axis=0))
        return op.Concat(op.Reshape(pairs, _joined(op, label)), one, axis=1)

    def _scan(
        self, op: Builder, path: Value, emitted: Value, first: Value, times: Value, steps: Value, dtype: ir.DataType
    ) -> Value:
        """Emit αₜ(s) = eₜ(s) + log(e^αₜ₋₁(s) + e^αₜ₋₁(s-1) + [a label, not the one before] e^αₜ₋₁(s-2))."""
        two_before = op.Slice(op.Pad(path, [0, 2, 0, 0], -1), [0], [-2], [1])
        may_skip = op.And(op.Not(op.Equal(path, self.blank)), op.Not(op.Equal(path, two_before)))
        counting = op.Unsqueeze(times, [1])
        alpha, now = _value(op, "alpha", dtype), _value(op, "emitted", dtype)
        time = _value(op, "time", ir.DataType.INT64, rank=0)
        body = Builder(op.opset, op.names, prefix=f"{op.prefix}step/")
        never = body.constant(_NEVER, dtype)
        one = body.Slice(body.Pad(alpha, [0, 1, 0, 0], never), [0], [-1], [1])
        two = body.Slice(body.Pad(alpha, [0, 2, 0, 0], never), [0], [-2], [1])
        two = body.Where(may_skip, two, never)
        following = body.Add(now, _log_sum(body, alpha, one, two))
        following = body.Where(body.Less(time, counting), following, alpha)
        following.type, following.shape = ir.TensorType(dtype), ir.Shape([None, None])
        graph = ir.Graph([alpha, now, time], [following], nodes=body.nodes, name="ctc_step")
        later = op.Slice(emitted, [1], [np.iinfo(np.int64).max], [0])
        return op.Scan(first, later, op.Range(1, steps, 1), body=graph, num_scan_inputs=2)


def ctc_decode(
    scores: np.ndarray, blank: int = 0, time_axis: int = 1, lengths: Sequence[int] | None = None
) -> list[list[int]]:
    """Return the labels of each sample by greedy decoding: the best class of each step, without repeats and blanks.

    Args:
        scores: logits, probabilities or their logarithms: [N, T, C], or [T, N, C] with `time_axis=0`.
        blank: the index of the class that means no label.
        time_axis: 0 or 1.
        lengths: the number of steps of each sample (default: all).

    >>> steps = np.eye(3)[[[0, 1, 1, 0, 1, 2]]]
    >>> ctc_decode(steps)
    [[1, 1, 2]]
    """
    best = np.asarray(scores).argmax(-1)
    best = best.T if time_axis == 0 else best
    found = []
    for i, row in enumerate(best):
        row = row if lengths is None else row[: int(lengths[i])]
        first = np.concatenate([[True], row[1:] != row[:-1]]) if len(row) else np.zeros(0, bool)
        found.append(row[first & (row != blank)].tolist())
    return found


def _joined(op: Builder, label: Value) -> Value:
    """Return the shape [N, 2S], explicitly, because -1 is not defined if S is 0."""
    batch, count = op.Shape(label, start=0, end=1), op.Shape(label, start=1, end=2)
    return op.Concat(batch, op.Mul(count, 2), axis=0)


def _log_sum(op: Builder, *terms: Value) -> Value:
    """Return log Σ e^term without overflow."""
    largest = op.Max(*terms)
    total = op.Sum(*(op.Exp(op.Sub(term, largest)) for term in terms))
    return op.Add(largest, op.Log(total))


def _value(op: Builder, name: str, dtype: ir.DataType, rank: int = 2) -> Value:
    return ir.Value(
        name=op.names.unique(f"{op.prefix}step/{name}"), type=ir.TensorType(dtype), shape=ir.Shape([None] * rank)
    )
