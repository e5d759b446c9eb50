"""The lengths that CTC needs beside its labels, where the data does not hold them.

`losses.CTC` reads `labels` (N, S), `labels/output_lengths` (N,) and `labels/label_lengths` (N,). Without the first of
the lengths every step of the output counts. Without the second a row of labels ends where its padding begins: at the
first negative number, or the first blank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from onward.compiler.program import Program, TensorSpec
from onward.errors import DataError, Diagnostic
from onward.model.task import Task
from onward.train.data.feed import Feed
from onward.train.data.preparation import Preparation

T116 = "T116"

_EVERY_STEP = np.iinfo(np.int32).max  # the loss compares the number of each step with it
_OUTPUT, _LABEL = "/output_lengths", "/label_lengths"


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Which targets of a program are lengths that can be derived, and the blank of its loss."""

    blank: int

    @classmethod
    def of(cls, program: Program) -> Lengths | None:
        """Return the rule for a program that trains with CTC; None for any other."""
        task = Task.of_metadata(program.infer_graph.model.metadata_props)
        return cls(task.blank) if task is not None and task.kind == "ctc" else None

    def absent(self, targets: Sequence[TensorSpec], given: Collection[str]) -> list[TensorSpec]:
        """Return the lengths among the targets for which the data has no column; `given` are those that have one."""
        names = {t.name for t in targets}
        return [t for t in targets if t.name not in given and _labels_of(t.name) in names]

    def feed(self, spec: TensorSpec, column: str, dtype: np.dtype[Any]) -> LengthFeed:
        """Return how one of the lengths is made from the column of the labels."""
        return LengthFeed(spec, column, True, Preparation(), dtype, blank=self.blank)


def _labels_of(name: str) -> str | None:
    """Return the target whose lengths this one holds.

    >>> _labels_of("labels/label_lengths"), _labels_of("labels")
    ('labels', None)
    """
    ending = next((e for e in (_OUTPUT, _LABEL) if name.endswith(e)), None)
    return None if ending is None else name.removesuffix(ending)


def labels_of(spec: TensorSpec) -> str:
    """Return the name of the target whose lengths `spec` holds."""
    name = _labels_of(spec.name)
    assert name is not None
    return name


@dataclasses.dataclass(frozen=True)
class LengthFeed(Feed):
    """Lengths that are derived from the labels."""

    blank: int = 0

    def make(self, array: np.ndarray) -> np.ndarray:
        """Return one length for each row of labels.

        Raises:
            DataError: labels follow the padding, so that it is none.
        """
        labels = array
        if self.spec.name.endswith(_OUTPUT):
            return np.full(len(labels), _EVERY_STEP, self.dtype)
        if labels.ndim != 2:
            raise DataError(
                Diagnostic(
                    T116,
                    f"`{self.column}` has the shape {labels.shape}",
                    needed="(N, S): a row of class numbers for each sample, padded with -1",
                )
            )
        is_label = (labels >= 0) & (labels != self.blank)
        counts = is_label.sum(axis=1)
        after = is_label & (np.arange(labels.shape[1]) >= counts[:, None])
        if after.any():
            self._refuse(labels, int(np.flatnonzero(after.any(axis=1))[0]))
        return np.asarray(counts, dtype=self.dtype)

    def _refuse(self, labels: np.ndarray, row: int) -> None:
        shown = ", ".join(str(int(v)) for v in labels[row][:12]) + (", …" if labels.shape[1] > 12 else "")
        raise DataError(
            Diagnostic(
                T116,
                f"a row of `{self.column}` has labels behind its padding: class {self.blank} is the blank of CTC, and "
                "negative numbers are no class",
                found=f"{shown} (row {row} of the batch)",
                needed="class numbers other than the blank, then -1 or the blank up to the end of the row; or "
                f"`{labels_of(self.spec)}{_LABEL}` (N,), which says how many labels each row has",
                hint="if the letters are numbered from 0 and the blank is the last class, as in Keras, make the model "
                "with blank=…, the number of letters; or add 1 to every label"
                if self.blank == 0
                else "if the blank is class 0, as in PyTorch, make the model with blank=0",
            )
        )
