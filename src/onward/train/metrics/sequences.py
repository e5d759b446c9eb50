"""Metrics of sequences of labels."""

from __future__ import annotations

import numpy as np

from onward.arguments import whole
from onward.errors import A101, ArgumentError, Diagnostic
from onward.losses.ctc import ctc_decode
from onward.train.metrics.base import Metric, arrays, mismatch


class CharacterErrorRate(Metric):
    """The edits (insertions, deletions, replacements) that turn the decoded output into the label, for each label.

    For a model that `losses.CTC` trains: output (N, T, C) or (T, N, C), decoded greedily over all T steps; target
    (N, S), where the blank and negative numbers are padding.
    """

    name = "cer"
    larger_is_better = False

    def __init__(self, blank: int = 0, time_axis: int | None = None) -> None:
        self.blank = whole("blank of the character error rate", blank, 0)
        if time_axis not in (None, 0, 1):
            raise ArgumentError(
                Diagnostic(A101, f"time_axis is {time_axis!r}", needed="0, 1, or None to tell by shapes")
            )
        self.time_axis = time_axis
        super().__init__()

    def reset(self) -> None:
        self._edits, self._labels = np.int64(0), np.int64(0)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        output, target = arrays(self.name, output, target)
        if output.ndim != 3 or target.ndim != 2 or target.dtype.kind not in "iu" or len(target) not in output.shape[:2]:
            raise mismatch(self.name, output, target, "output (N, T, C) or (T, N, C), and integer labels (N, S)")
        if self.time_axis is None:
            if output.shape[0] == output.shape[1]:
                needed = "the axis of time: CharacterErrorRate(time_axis=1), as there are as many steps as samples"
                raise mismatch(self.name, output, target, needed)
            self.time_axis = 1 if output.shape[0] == len(target) else 0
        for found, row in zip(ctc_decode(output, self.blank, self.time_axis), target, strict=True):
            wanted = row[(row >= 0) & (row != self.blank)].tolist()
            self._edits += _edit_distance(found, wanted)
            self._labels += len(wanted)

    def compute(self) -> float:
        return float(self._edits / self._labels) if self._labels else float("nan")


def _edit_distance(a: list[int], b: list[int]) -> int:
    """Return the number of insertions, deletions and replacements between two sequences (Levenshtein).

    >>> _edit_distance([1, 2, 3], [2, 3, 4])
    2
    """
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]
