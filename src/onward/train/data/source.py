"""Sources of batches, which `fit` iterates over.

The order of an epoch depends on (seed, epoch) and nothing else, so that a run can be resumed in the middle of an
epoch. It is the order of raw Philox numbers, whose stream numpy keeps stable across versions.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from onward.arguments import a_or_an
from onward.backends.processes import Rows, share
from onward.compiler.program import TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic

Batch = dict[str, np.ndarray]

T105 = "T105"
T106 = "T106"
T107 = "T107"

_SPLIT_KEY = 0x6F6E77617264  # keeps the validation split independent of the order of any epoch


@dataclasses.dataclass(frozen=True)
class BatchRequest:
    """Which batches of which epoch to deliver; `start` skips those already seen."""

    batch_size: int
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0
    start: int = 0
    drop_last: bool = False
    part: int = 0
    parts: int = 1
    """Of several processes, each needs its part of every batch: as `Rows`. A source may deliver whole batches, too."""


def epoch_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """Return a permutation of `range(size)` that depends on (seed, epoch) only.

    >>> epoch_order(5, seed=0, epoch=1).tolist() == epoch_order(5, seed=0, epoch=1).tolist()
    True
    """
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, epoch & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")


def no_batches(what: str) -> DataError:
    """Return the error for a source that has ended before its first batch."""
    return DataError(
        Diagnostic(
            T106,
            f"{what} got no batch",
            needed="at least one",
            hint="with drop_last a batch must be full: lower batch_size",
        )
    )


def batch_length(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of samples of a batch: the first axis of its first array that has one."""
    return next((getattr(a, "total", 0) or int(a.shape[0]) for a in batch.values() if np.ndim(a)), 1)


class Column(Protocol):
    """One value per sample; `take` reads some of them."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def take(self, indices: np.ndarray | slice) -> np.ndarray: ...


class ArrayColumn:
    """A column held by an array, in memory or memory-mapped."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def take(self, indices: np.ndarray | slice) -> np.ndarray:
        """Return the samples at `indices`: a view for a slice, a copy otherwise."""
        return np.asarray(self.array[indices])


class SubsetColumn:
    """Some samples of another column."""

    def __init__(self, base: Column, indices: np.ndarray) -> None:
        self.base, self.indices = base, indices

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.base.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.indices), *self.base.shape[1:])

    def take(self, indices: np.ndarray | slice) -> np.ndarray:
        """Return the samples at `indices` of the subset."""
        return self.base.take(self.indices[indices])


class DataSource(abc.ABC):
    """Where batches come from. Subclass it for data of your own: `specs` and `batches` are enough."""

    positional = False
    """True when the columns are to be matched by position: the inputs of the model first, then its targets."""

    nameless = False
    """True when the data has no names: those of its columns were invented, so that only the position counts."""

    renamed = False
    """True when the columns already carry the model's names, so that a `columns=` mapping has been used up."""
    table: Mapping[str, Sequence[str]] = {}
    """Name of the model -> columns of the table behind it, where the data is a table."""

    @property
    def size(self) -> int | None:
        """How many samples there are; None when that is not known."""
        return None

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes behind integer labels, where the data has names."""
        return ()

    @abc.abstractmethod
    def specs(self) -> list[TensorSpec]:
        """Return name, dtype and shape of each column; the first dimension is the batch (None)."""

    @abc.abstractmethod
    def batches(self, request: BatchRequest) -> Iterator[Batch]:
        """Yield the batches of one epoch by column name, beginning with number `request.start`."""

    @property
    def caveat(self) -> str:
        """Why a resumed run would not see the same batches; empty where it does, as far as one can know."""
        return ""

    def count_batches(self, batch_size: int, drop_last: bool = False) -> int | None:
        """Return the number of batches per epoch; None when the size is not known."""
        if self.size is None:
            return None
        return self.size // batch_size if drop_last else -(-self.size // batch_size)

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be equal for a run to be resumed: size, names, dtypes and shapes."""
        return {"size": self.size, "columns": [[s.name, s.dtype, [str(d) for d in s.shape]] for s in self.specs()]}


class ColumnSource(DataSource):
    """Samples that can be read in any order, column by column."""

    def __init__(
        self,
        columns: Mapping[str, Column] | Mapping[str, np.ndarray],
        *,
        positional: bool = False,
        classes: Sequence[str] = (),
        place: str = "",
    ) -> None:
        if not isinstance(columns, Mapping):
            raise ArgumentError(
                Diagnostic(A101, f"{a_or_an(columns)} holds no columns", needed="a dict of columns by name")
            )
        self.columns: dict[str, Column] = {}
        for name, column in columns.items():  # an array has a `take` of its own, which means something else
            self.columns[name] = ArrayColumn(column) if isinstance(column, np.ndarray) else column
        self.positional = positional
        self._classes = tuple(classes)
        self._place = place
        self._check_lengths()

    def _check_lengths(self) -> None:
        scalars = [name for name, column in self.columns.items() if not column.shape]
        if scalars:
            raise DataError(
                Diagnostic(
                    T105,
                    "a column without a sample axis: " + ", ".join(f"`{n}`" for n in scalars),
                    place=self._place,
                    needed="arrays whose first axis counts the samples",
                )
            )
        lengths = {name: column.shape[0] for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                Diagnostic(
                    T105,
                    "the columns have different numbers of samples",
                    place=self._place,
                    found=", ".join(f"`{n}`: {k}" for n, k in lengths.items()),
                    needed="the same number in each",
                )
            )
        if not lengths or next(iter(lengths.values())) == 0:
            raise DataError(
                Diagnostic(
                    T106,
                    "the data holds no samples",
                    place=self._place,
                    found=", ".join(f"`{n}` {c.shape}" for n, c in self.columns.items()) or "no columns",
                    needed="at least one sample",
                )
            )

    @property
    def size(self) -> int:
        return next(iter(self.columns.values())).shape[0]

    @property
    def classes(self) -> Sequence[str]:
        return self._classes

    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(name, str(c.dtype), (None, *c.shape[1:])) for name, c in self.columns.items()]

    def order(self, request: BatchRequest) -> np.ndarray | None:
        """Return the numbers of the samples in the order of the epoch; None for that of the data."""
        return epoch_order(self.size, request.seed, request.epoch) if request.shuffle else None

    def places(self, request: BatchRequest, size: int) -> Iterator[tuple[slice, int]]:
        """Yield for each batch the places in an epoch of `size` samples that this process reads, and those of all.

        The second number is 0 where the batch is too small to be shared out.
        """
        end = size - size % request.batch_size if request.drop_last else size
        for first in range(request.start * request.batch_size, end, request.batch_size):
            last = min(first + request.batch_size, size)
            if last - first < request.parts:  # nothing to share out
                yield slice(first, last), 0
            else:
                rows = share(last - first, request.part, request.parts)
                yield slice(first + rows.start, first + rows.stop), last - first

    def batches(self, request: BatchRequest) -> Iterator[Batch]:
        order = self.order(request)
        for own, total in self.places(request, self.size if order is None else len(order)):
            where = own if order is None else order[own]
            taken = {name: column.take(where) for name, column in self.columns.items()}
            yield {n: Rows.of(a, total) for n, a in taken.items()} if request.parts > 1 and total else taken

    def split_rows(self, fraction: float, seed: int = 0, by: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the samples in the two parts of `split`."""
        return split_rows(self.size, fraction, seed, self._place, self._groups(by))

    def _groups(self, by: str | None) -> np.ndarray | None:
        """Return the group of each sample for `split`: its class in column `by`, where the data names its classes."""
        column = self.columns.get(by or "")
        return column.array if self._classes and isinstance(column, ArrayColumn) else None

    def split(self, fraction: float, seed: int = 0, by: str | None = None) -> tuple[ColumnSource, ColumnSource]:
        """Return (the rest, a random `fraction` of the samples); the same `seed` gives the same choice.

        Where column `by` holds classes with names, both parts have the same share of each.
        """
        parts = self.split_rows(fraction, seed, by)
        rest, validation = (
            ColumnSource(
                {name: SubsetColumn(column, part) for name, column in self.columns.items()},
                positional=self.positional,
                classes=self._classes,
                place=self._place,
            )
            for part in parts
        )
        for part in (rest, validation):
            part.renamed, part.table, part.nameless = self.renamed, self.table, self.nameless
        return rest, validation


def split_rows(
    size: int, fraction: float, seed: int, place: str, groups: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of (the rest, a random `fraction`) of the samples; the same `seed` gives the same choice.

    Of each of the `groups`, a number for each sample, the same fraction is chosen. A few samples would otherwise often
    be all of one class.
    """
    if not isinstance(fraction, (int, float, np.number)) or not 0.0 < fraction < 1.0:
        raise ArgumentError(
            Diagnostic(A101, f"the validation fraction is {fraction}", needed="a number between 0 and 1")
        )
    order = epoch_order(size, seed, _SPLIT_KEY)
    held = round(size * fraction)
    if held in (0, size):
        raise DataError(
            Diagnostic(
                T106,
                f"a fraction of {fraction} of {size} samples leaves one side empty",
                place=place,
                needed="at least one sample on each side",
            )
        )
    if groups is None:
        return np.sort(order[held:]), np.sort(order[:held])
    order = order[np.argsort(groups[order], kind="stable")]  # group by group, in each at random
    steps = (np.arange(size + 1) * held + size // 2) // size  # rises by one at every `size / held` samples
    chosen = np.diff(steps) > 0
    return np.sort(order[~chosen]), np.sort(order[chosen])
