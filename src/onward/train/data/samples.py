"""Samples one by one: torch and Hugging Face datasets, tf.data, and lists of samples. None of them is imported here.

What can be read in any order (`SampleSource`) is shuffled by Onward and resumes bit for bit, as arrays do, as long as
sample i is always the same. What can only be read from the start (`SampleStream`) decides its own order; a resumed run
reads over what it has seen, and is exact if the same samples come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import a_or_an
from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic
from onward.train.data.arrays import flat, to_array
from onward.train.data.class_numbers import renumber_classes
from onward.train.data.feed import T111, fits_shape
from onward.train.data.files import _PARTS as PARTS
from onward.train.data.frame import Frame
from onward.train.data.matching import T110
from onward.train.data.preparation import Preparation
from onward.train.data.source import T106, T107, Batch, BatchRequest, ColumnSource, DataSource

Specs = Sequence[TensorSpec]


def is_of(value: Any, module: str, *names: str) -> bool:
    """Return whether the class of a value, or a base of it, is one of these names of a library."""
    return any(
        kind.__name__ in names and (kind.__module__ == module or kind.__module__.startswith(module + "."))
        for kind in type(value).__mro__
    )


def open_samples(
    x: Any, inputs: Specs, targets: Specs, part: str, preparation: Preparation
) -> DataSource | Frame | None:
    """Return the source for samples of a known kind, or the frame for those that are rows of a table; None for others.

    Raises:
        DataError: there is no sample, or no part of the data for `part`.
    """
    if is_of(x, "datasets", "DatasetDict", "IterableDatasetDict"):
        x = x[_part(x, part)]
    if is_of(x, "datasets", "Dataset"):
        return _hugging_face(x, targets, preparation)
    specs = [*inputs, *targets]
    if is_of(x, "datasets", "IterableDataset") or is_of(x, "torch.utils.data", "IterableDataset"):
        return _stream(x, specs)
    if is_of(x, "torch.utils.data", "Dataset") and hasattr(x, "__len__"):
        return SampleSource(_Samples(x, len(x), specs, "the torch Dataset"))
    if is_of(x, "tensorflow", "DatasetV2", "Dataset"):
        return _stream(x, specs)
    if isinstance(x, list) and x and _is_sample(x[0], specs):
        return SampleSource(_Samples(x, len(x), specs, "the list of samples"))
    return None


def _part(parts: Mapping[str, Any], part: str) -> str:
    for name in PARTS[part]:
        if name in parts:
            return name
    raise DataError(
        Diagnostic(
            T110,
            f"the DatasetDict has no part to {'train on' if part == 'train' else 'evaluate'}",
            found=", ".join(parts),
            needed="one of: " + ", ".join(PARTS[part]),
            hint="pass the part itself: datasets['…']",
        )
    )


class SampleSource(ColumnSource):
    """Samples that can be read in any order: `dataset[i]` is a tuple (inputs, then targets) or a dict by name."""

    def __init__(self, samples: _Samples, classes: Sequence[str] = ()) -> None:
        columns = {name: _SampleColumn(samples, name) for name in samples.first}
        super().__init__(columns, positional=samples.positional, classes=classes, place=samples.place)


class _Samples:
    """Reads samples; those of the last batch are kept, since each column asks for them in turn."""

    def __init__(
        self, items: Any, size: int, specs: Specs, place: str, take: Callable[[np.ndarray], Batch] | None = None
    ) -> None:
        self.place, self.size = place, size
        self._items, self._specs, self._take = items, specs, take
        self._last: tuple[bytes, Batch] = (b"", {})
        if not size:
            raise DataError(Diagnostic(T106, "the data holds no samples", place=place, needed="at least one sample"))
        self.positional = take is None and not isinstance(items[0], Mapping)
        self.first = {name: a[0] for name, a in self.read(np.array([0])).items()}

    def read(self, numbers: np.ndarray) -> Batch:
        """Return some samples, stacked."""
        key = numbers.tobytes()
        last, batch = self._last
        if last != key:
            if self._take is not None:
                batch = self._take(numbers)
            else:
                batch = collate([self._items[int(i)] for i in numbers], self._specs, self.place, numbers)
            self._last = (key, batch)
        return batch


class _SampleColumn:
    def __init__(self, samples: _Samples, name: str) -> None:
        self._samples, self._name = samples, name

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.asarray(self._samples.first[self._name]).dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._samples.size, *np.shape(self._samples.first[self._name]))

    def take(self, indices: np.ndarray | slice) -> np.ndarray:
        numbers = np.arange(self._samples.size)[indices] if isinstance(indices, slice) else np.asarray(indices)
        return self._samples.read(numbers)[self._name]


class SampleStream(DataSource):
    """Samples that come in an order of their own, one after another; here they are put into batches."""

    def __init__(self, items: Iterable[Any], specs: Specs, place: str) -> None:
        self._items, self._specs, self._place = items, specs, place
        self._first: Batch | None = None
        self.positional = False

    def specs(self) -> list[TensorSpec]:
        if self._first is None:
            sample = next(iter(self._items), None)
            if sample is None:
                raise DataError(
                    Diagnostic(T106, "the data holds no samples", place=self._place, needed="at least one sample")
                )
            self.positional = not isinstance(sample, Mapping)
            self._first = collate([sample], self._specs, self._place, [0])
        return [TensorSpec(n, str(a.dtype), (None, *a.shape[1:])) for n, a in self._first.items()]

    @property
    def size(self) -> int | None:
        length = getattr(self._items, "__len__", None)
        try:
            return None if length is None else int(length())
        except TypeError:  # a tf.data set of unknown size
            return None

    def batches(self, request: BatchRequest) -> Iterator[Batch]:
        if hasattr(self._items, "set_epoch"):  # Hugging Face: its shuffling depends on the number of the epoch
            self._items.set_epoch(request.epoch)
        skipped = request.start * request.batch_size
        waiting: list[Any] = []
        for number, sample in enumerate(self._items):
            if number < skipped:
                continue
            waiting.append(sample)
            if len(waiting) == request.batch_size:
                yield collate(waiting, self._specs, self._place, range(number + 1 - len(waiting), number + 1))
                waiting = []
        if waiting and not request.drop_last:
            yield collate(waiting, self._specs, self._place, range(len(waiting)))


def collate(samples: Sequence[Any], specs: Specs, place: str, numbers: Sequence[int] | np.ndarray) -> Batch:
    """Return samples as one batch: each part stacked along a new first axis.

    >>> collate([(1, [2.0, 3.0]), (4, [5.0, 6.0])], [], "", [0, 1])["item[1]"].tolist()
    [[2.0, 3.0], [5.0, 6.0]]
    """
    parts = [_parts(sample, specs, place) for sample in samples]
    batch: Batch = {}
    for name in parts[0]:
        arrays = [_array(p.get(name), name, int(n), place) for p, n in zip(parts, numbers, strict=True)]
        odd = next((i for i, a in enumerate(arrays) if a.shape != arrays[0].shape), None)
        if odd is not None:
            raise DataError(
                Diagnostic(
                    T111,
                    f"`{name}` has another shape in sample {int(numbers[odd])}",
                    place=place,
                    found=f"{arrays[odd].shape}, and {arrays[0].shape} in sample {int(numbers[0])}",
                    needed="the same shape in every sample of a batch",
                    hint="pad, crop or resize the samples to one size",
                )
            )
        batch[name] = np.stack(arrays)
    return batch


def _array(value: Any, name: str, number: int, place: str) -> np.ndarray:
    if value is None:
        raise DataError(Diagnostic(T110, f"sample {number} has no `{name}`", place=place, needed="it in every sample"))
    return to_array(value, f"`{name}` of sample {number}", text=True)


def _parts(sample: Any, specs: Specs, place: str) -> dict[str, Any]:
    if isinstance(sample, Mapping):
        return {str(k): v for k, v in sample.items()}
    if isinstance(sample, (tuple, list)):
        parts = list(sample) if len(sample) == len(specs) else list(flat(sample))
        return {f"item[{i}]": v for i, v in enumerate(parts)}
    if hasattr(sample, "__array__") or np.isscalar(sample):
        return {"item[0]": sample}
    raise DataError(
        Diagnostic(
            T107,
            f"a sample is {a_or_an(sample)}",
            place=place,
            needed="a dict of arrays by name, or a tuple of arrays (inputs, then targets)",
        )
    )


def _is_sample(item: Any, specs: Specs) -> bool:
    """Return whether an item is one sample and not a batch of them: its parts have one axis less than the model's."""
    if not isinstance(item, (Mapping, tuple, list)) and not hasattr(item, "__array__"):
        return False
    try:
        parts = _parts(item, specs, "")
        arrays = {n: to_array(v, n, text=True) for n, v in parts.items()}
    except DataError:
        return False  # what it is will be said where batches are read
    by_name = {s.name: arrays[s.name] for s in specs if s.name in arrays}
    pairs = [(a, s) for s in specs for n, a in by_name.items() if n == s.name]
    pairs = pairs or list(zip(arrays.values(), specs, strict=False))
    if pairs and all(_is_whole(a, s) for a, s in pairs):
        return False  # also where first axes differ: a recurrent state has one row for each layer
    if not pairs or (len({a.shape[:1] for a, _ in pairs}) == 1 and all(_fits_batch(a, s) for a, s in pairs)):
        single = all(a.ndim == len(s.shape) - 1 for a, s in pairs)  # both would do: the number of axes decides
        return bool(pairs) and single and all(fits_shape((None, *a.shape), s.shape) for a, s in pairs)
    return all(fits_shape((None, *a.shape), s.shape) for a, s in pairs)


def _is_whole(array: np.ndarray, spec: TensorSpec) -> bool:
    """Return whether an array has all axes of an input or target, with the sizes that the model fixes."""
    return array.ndim == len(spec.shape) and all(
        size == fixed for size, fixed in zip(array.shape, spec.shape, strict=True) if isinstance(fixed, int)
    )


def _fits_batch(array: np.ndarray, spec: TensorSpec) -> bool:
    return array.ndim > 0 and fits_shape((None, *array.shape[1:]), spec.shape)


def _stream(x: Any, specs: Specs) -> DataSource | None:
    """Return the stream of samples; None for one that gives whole batches."""
    first = next(iter(x), None)
    return None if first is not None and not _is_sample(first, specs) else SampleStream(x, specs, f"the {_kind(x)}")


def _kind(x: Any) -> str:
    return f"{type(x).__module__.partition('.')[0]} {type(x).__name__.lstrip('_')}"


def _hugging_face(dataset: Any, targets: Specs, preparation: Preparation) -> DataSource | Frame:
    """Return the rows of a Hugging Face dataset: as a table, or where they hold images or arrays, read on demand.

    Names of classes belong to the column of a target; where the model knows the classes already, it numbers them.
    """
    plain = dataset.with_format(None)
    if len(plain) and all(np.ndim(v) == 0 and not hasattr(v, "size") for v in plain[0].values()):
        frame = Frame.of(dataset.with_format("arrow")[:], "the Hugging Face dataset")
        assert frame is not None
        frame.class_names = _class_names(dataset)
        return frame
    arrays = dataset.with_format("numpy")
    place, known = "the Hugging Face dataset", preparation.classes
    read = {n for t in targets for n in (t.name, preparation.columns.get(t.name)) if isinstance(n, str)}
    named = {n: c for n, c in _class_names(dataset).items() if n in read}

    def take(numbers: np.ndarray) -> Batch:
        rows = arrays[numbers.tolist()]
        lists = {n: list(v) if v.dtype.kind == "O" else None for n, v in rows.items()}
        uneven = {n: [{n: v} for v in cells] for n, cells in lists.items() if cells is not None}
        made = {n: collate(uneven[n], [], place, numbers)[n] if n in uneven else np.asarray(v) for n, v in rows.items()}
        return made | {n: renumber_classes(made[n], c, known, place) for n, c in named.items()}

    names = list(named.values())
    samples = _Samples(arrays, len(arrays), [], place, take)
    return SampleSource(samples, (known or names[0]) if len(names) == 1 else ())


def _class_names(dataset: Any) -> dict[str, Sequence[str]]:
    return {n: tuple(f.names) for n, f in dataset.features.items() if type(f).__name__ == "ClassLabel"}
