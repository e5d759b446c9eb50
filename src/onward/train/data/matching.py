"""Match the columns of the data to the inputs and targets of a model, before the first step.

These conversions happen automatically, and no others:

- integers and booleans are cast to the model's float type (uint8 images), floats to another float width, integers to
  another integer width (an overflow is an error);
- one axis of size 1 is added or removed: (N, H, W) becomes (N, 1, H, W) or (N, H, W, 1), labels (N, 1) become (N,);
- trailing axes are flattened when the model takes (N, K) and the data has K numbers per sample.

Scaling, mean, standard deviation and one-hot encoding happen on request. Everything else is an error that shows both
sides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import a_or_an, did_you_mean, nearest
from onward.backends.processes import Rows
from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic, OnwardError
from onward.graph.shapes import UNPROVEN
from onward.train.data.preparation import Preparation as Preparation
from onward.train.data.source import T107, Batch, DataSource, to_array

T110 = "T110"
T111 = "T111"
T112 = "T112"
T113 = "T113"
T115 = "T115"
T114 = "T114"

_IN_CACHE = 1 << 17  # so many numbers stay in the processor's cache between one operation and the next


def number_classes(names: Sequence[str], known: Sequence[str], place: str) -> dict[str, int]:
    """Return class name -> number: as in `known` (the model), or sorted when that is empty.

    Raises:
        DataError: a class that the model does not know.
    """
    if not known:
        return {name: i for i, name in enumerate(sorted(names))}
    new = [n for n in names if n not in known]
    if new:
        raise DataError(
            Diagnostic(
                T115,
                "classes that the model does not know: " + ", ".join(f"`{n}`" for n in new),
                place=place,
                needed="some of: " + ", ".join(f"`{n}`" for n in known),
            )
        )
    return {name: i for i, name in enumerate(known)}


def renumber_classes(labels: np.ndarray, names: Sequence[str], known: Sequence[str], place: str) -> np.ndarray:
    """Return class numbers of data that names its classes `names`, as the numbers that `known` gives these names.

    Negative numbers, for samples without a class, stay as they are.

    >>> renumber_classes(np.array([0, 1, -1]), ["dog", "cat"], ["cat", "dog"], "").tolist()
    [1, 0, -1]

    Raises:
        DataError: a class that the training data did not have.
    """
    if not known or list(names) == list(known[: len(names)]):
        return labels
    present = [int(n) for n in np.unique(labels) if 0 <= n < len(names)]
    numbers = number_classes([names[n] for n in present], known, place)
    made = labels.copy()
    for number in present:
        made[labels == number] = numbers[names[number]]
    return made


@dataclasses.dataclass(frozen=True)
class Feed:
    """How one input or target of the model is made from one column."""

    spec: TensorSpec
    column: str
    is_target: bool
    preparation: Preparation
    dtype: np.dtype[Any]
    classes: int = 0  # width of the one-hot encoding; 0 for none

    def make(self, array: np.ndarray) -> np.ndarray:
        """Return the array the model takes."""
        if self.classes:
            array = _one_hot(array, self.classes, self.spec.name, self.dtype)
        plan = _plan_shape(array.shape, self.spec.shape)
        if plan is None:
            raise DataError(_shape_problem(self.spec, self.column, array.shape))
        array = array.reshape(plan)
        if not self.is_target and self.dtype.kind not in "iub" and self.preparation.normalises:
            return self._normalise(array)
        return _cast(array, self.dtype, self.spec.name, self.column)

    def _normalise(self, array: np.ndarray) -> np.ndarray:
        p = self.preparation
        work = np.dtype(np.float64 if self.dtype == np.float64 else np.float32)
        out = np.empty(array.shape, work)
        scale = np.asarray(p.scale, dtype=work)
        mean, std = (self._per_channel(np.asarray(v, dtype=work), out) for v in (p.mean, p.std))
        count = len(array) if array.ndim else 0
        block = max(1, _IN_CACHE * count // max(array.size, 1))  # of samples
        parts = [slice(first, first + block) for first in range(0, count, block)] if array.ndim else [...]
        for part in parts:
            made = out[part]
            np.multiply(array[part], scale, out=made, dtype=work, casting="unsafe")
            np.subtract(made, mean, out=made)
            np.divide(made, std, out=made)
        return np.asarray(out, dtype=self.dtype)

    def _per_channel(self, values: np.ndarray, like: np.ndarray) -> np.ndarray:
        if values.ndim == 0:
            return values
        if like.ndim < 2 or values.shape != (like.shape[1],):
            raise DataError(
                Diagnostic(
                    T111,
                    f"mean or std has {values.size} numbers for input `{self.spec.name}`",
                    found=f"input of shape {like.shape}",
                    needed="one number, or one per channel (axis 1)",
                )
            )
        return values.reshape((-1,) + (1,) * (like.ndim - 2))


class Matching:
    """Turns batches of a source into feeds of a model."""

    weight: str | None = None
    """The feed that holds the weight of each sample, where the loss takes weights."""

    def __init__(self, feeds: Sequence[Feed], sizes: SizeRule | None = None) -> None:
        self.feeds = tuple(feeds)
        self._sizes = sizes or SizeRule()

    def make(self, batch: Batch) -> Batch:
        """Return the feeds for one batch of the source."""
        if not isinstance(batch, Mapping):
            raise DataError(
                Diagnostic(T107, f"a batch of the source is {a_or_an(batch)}", needed="a dict of arrays by name")
            )
        missing = [f for f in self.feeds if f.column not in batch]
        if missing:
            raise DataError(
                [
                    Diagnostic(
                        T110,
                        f"a later batch has no `{f.column}` for `{f.spec.name}`",
                        found=", ".join(f"`{n}`" for n in batch),
                        needed="the same columns in every batch",
                    )
                    for f in missing
                ]
            )
        made = {
            f.spec.name: f.make(to_array(batch[f.column], f"`{f.column}` of a batch", text=f.dtype.kind == "O"))
            for f in self.feeds
        }
        inputs, targets = ([f.spec for f in self.feeds if f.is_target is kind] for kind in (False, True))
        problem = self._sizes.problem(inputs, targets, made)
        if problem is not None:
            raise DataError(problem)
        total = next((a.total for a in batch.values() if isinstance(a, Rows)), 0)
        return {name: Rows.of(a, total) for name, a in made.items()} if total else made


class SizeRule:
    """Feeds that share the name of their first axis have the same number of samples.

    A runtime may silently compute a loss of a hundred outputs and five labels. But some files name the first axis of an
    output after the batch although it has another size (frames, boxes, the scores of one sample). So before a batch is
    refused for a target whose name is not proven, `infer` computes the outputs: if it has the size of an output, it is
    right, and the file is wrong.
    """

    def __init__(self, infer: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]] | None = None) -> None:
        self._infer = infer
        self._right: set[tuple[object, ...]] = set()  # shapes of inputs with the size of a target, as computed before

    def problem(
        self, inputs: Sequence[TensorSpec], targets: Sequence[TensorSpec], feeds: Mapping[str, np.ndarray]
    ) -> Diagnostic | None:
        """Return the problem of one batch, or None."""
        found = _differing(inputs, targets, feeds)
        doubtful = [t for t in targets if t.shape and isinstance(t.shape[0], str) and t.shape[0].endswith(UNPROVEN)]
        proven = [t for t in targets if t not in doubtful]
        if found is None or self._infer is None or _differing(inputs, proven, feeds) is not None:
            return found
        given = tuple(feeds[s.name].shape for s in inputs if s.name in feeds)
        asked = [t for t in doubtful if _differing(inputs, [t], feeds) is not None]
        unknown = [t for t in asked if (given, t.name, len(feeds[t.name])) not in self._right]
        if not unknown:
            return None
        try:
            outputs = self._infer({s.name: feeds[s.name] for s in inputs})
        except (OnwardError, KeyError):
            return found
        sizes = {len(v) for v in outputs.values() if isinstance(v, np.ndarray) and v.ndim}
        if any(len(feeds[t.name]) not in sizes for t in unknown):
            return found
        self._right.update((given, t.name, len(feeds[t.name])) for t in unknown)
        return None


def _differing(
    inputs: Sequence[TensorSpec], targets: Sequence[TensorSpec], feeds: Mapping[str, np.ndarray]
) -> Diagnostic | None:
    sizes: dict[str, dict[str, int]] = {}
    for spec in (*inputs, *targets):
        if spec.name in feeds and spec.shape and isinstance(spec.shape[0], str):
            symbol = spec.shape[0].removesuffix(UNPROVEN)
            sizes.setdefault(symbol, {})[spec.name] = len(feeds[spec.name])
    for symbol, found in sizes.items():
        if len(set(found.values())) > 1:
            return Diagnostic(
                T111,
                "the inputs of a step have different numbers of samples",
                found=", ".join(f"`{name}`: {size}" for name, size in found.items()),
                needed=f"the same number in each: the model calls their first axis `{symbol}`",
            )
    return None


def match(
    source: DataSource,
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
    preparation: Preparation,
    *,
    batch_size: int | None = None,
    sizes: SizeRule | None = None,
    lenient: bool = False,
) -> Matching:
    """Return how the source feeds the model.

    With `lenient`, a column of another name feeds the one input, or the one target, that has none, if no other can.

    Raises:
        DataError: listing every column that is missing or does not fit, with both sides.
    """
    found = source.specs()
    if not isinstance(found, (list, tuple)) or not all(isinstance(spec, TensorSpec) for spec in found):
        raise DataError(
            Diagnostic(
                T110,
                f"`specs()` of {type(source).__name__} says nothing about its columns",
                found=repr(found)[:80],
                needed="a list of onward.compiler.program.TensorSpec(name, dtype, shape), one per column",
            )
        )
    columns = {spec.name: spec for spec in found}
    wanted = [(spec, False) for spec in inputs] + [(spec, True) for spec in targets]
    mapping = {n: c if isinstance(c, str) else ",".join(c) for n, c in preparation.columns.items()}
    if lenient and not source.positional:
        mapping = {**_only_choices(columns, inputs, targets, mapping), **mapping}
    if source.renamed or (source.positional and not set(mapping.values()) & set(columns)):
        mapping = {}  # already applied to a table, or meant for other data: the position decides
    chosen, problems = _choose_columns(
        columns, [spec for spec, _ in wanted], source.positional, mapping, bool(targets), source.nameless
    )
    feeds = []
    for spec, is_target in wanted:
        if spec.name not in chosen:
            continue
        feed, problem = _plan_feed(spec, columns[chosen[spec.name]], is_target, preparation)
        if problem:
            problems.append(problem)
        feeds.append(feed)
        problems += _check_batch(spec, batch_size)
    if problems:
        raise DataError(problems)
    return Matching(feeds, sizes)


def _only_choices(
    columns: Mapping[str, TensorSpec],
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
    mapping: Mapping[str, str],
) -> dict[str, str]:
    """Return column for the one input without a column, and for the one target without, where only one can be meant."""
    found: dict[str, str] = {}
    taken = {mapping.get(s.name, s.name) for s in (*inputs, *targets)}
    for specs in (inputs, targets):
        missing = [s for s in specs if s.name not in mapping and s.name not in columns]
        free = [c for c in columns.values() if c.name not in taken]
        if len(missing) == 1:
            (spec,) = missing
            fitting = [c for c in free if _plan_shape(tuple(c.shape), spec.shape) is not None]
            if len(fitting) == 1:
                found[spec.name] = fitting[0].name
                taken.add(fitting[0].name)
    return found


def _choose_columns(
    columns: Mapping[str, TensorSpec],
    wanted: Sequence[TensorSpec],
    positional: bool,
    mapping: Mapping[str, str],
    exact: bool,
    nameless: bool = False,
) -> tuple[dict[str, str], list[Diagnostic]]:
    """Return model name -> column name and the problems; by name first, by position where the data has no names."""
    problems: list[Diagnostic] = []
    found = "data: " + (", ".join(_show(s) for s in columns.values()) or "no columns")
    unknown = [name for name in mapping if name not in {s.name for s in wanted}]
    for name in unknown:
        problems.append(
            Diagnostic(
                T110,
                f"columns names `{name}`, which the model does not have",
                needed="one of: " + ", ".join(s.name for s in wanted),
                hint=did_you_mean(nearest(name, [s.name for s in wanted])),
            )
        )
    chosen: dict[str, str] = {}
    by_position = positional and (nameless or not any(s.name in columns for s in wanted))
    if by_position and (len(columns) < len(wanted) or (exact and len(columns) > len(wanted))):
        problems.append(
            Diagnostic(
                T110,
                f"the data has {len(columns)} columns and the model takes {len(wanted)}",
                found=found,
                needed="model: " + ", ".join(_show(s) for s in wanted) + " in this order",
            )
        )
        return chosen, problems
    names = list(columns)
    for i, spec in enumerate(wanted):
        name = mapping.get(spec.name, names[i] if by_position else spec.name)
        if name in columns:
            chosen[spec.name] = name
        else:
            problems.append(
                Diagnostic(
                    T110,
                    f"no column `{name}` in the data",
                    found=found,
                    needed=f"model: {_show(spec)}",
                    hint=_column_hint(spec.name, name, names),
                )
            )
    return chosen, problems


def _plan_feed(
    spec: TensorSpec, column: TensorSpec, is_target: bool, preparation: Preparation
) -> tuple[Feed, Diagnostic | None]:
    dtype = numpy_dtype(spec.dtype)
    have = numpy_dtype(column.dtype)
    feed = Feed(spec, column.name, is_target, preparation, dtype)
    shape = tuple(column.shape)
    width = spec.shape[-1] if spec.shape else None
    codable = is_target and have.kind in "iu" and len(spec.shape) >= 2 and _plan_shape(shape, spec.shape) is None
    if preparation.one_hot and is_target and have.kind in "iu":
        if not isinstance(width, int):
            return feed, Diagnostic(
                T112,
                f"one-hot coding of `{spec.name}` needs the number of classes",
                found=f"model: {_show(spec)}",
                needed="a target whose last dimension is a number",
            )
        shape = (*(shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape), width)
        feed = dataclasses.replace(feed, classes=width)
        have = dtype
    hint = "integer classes become rows of 0 and 1 with one_hot=True" if codable else ""
    if is_target and dtype.kind in "iu" and len(shape) == len(spec.shape) + 1:
        hint = f"the model takes class numbers; from rows of one number per class: {column.name}.argmax(axis=-1)"
    if _plan_shape(shape, spec.shape) is None:
        return feed, _shape_problem(spec, column.name, column.shape, column.dtype, hint)
    if not _may_cast(have, dtype):
        return feed, Diagnostic(
            T112,
            f"column `{column.name}` has the wrong element type for `{spec.name}`",
            found=f"data: {_show(column)}",
            needed=f"model: {_show(spec)}",
            hint=hint or _type_hint(have, dtype, column.name),
        )
    return feed, None


def _column_hint(wanted: str, missing: str, names: Sequence[str]) -> str:
    near = nearest(missing, names, n=1)
    if near:
        return f"did you mean `{near[0]}`? columns={{'{wanted}': '{near[0]}'}} reads it"
    return f"say which column to use: columns={{'{wanted}': '…'}}"


def _type_hint(have: np.dtype[Any], want: np.dtype[Any], column: str) -> str:
    if _is_float(have) and want.kind in "iu":
        return f"class numbers are whole numbers: {column}.astype('int64'), once nothing in it is NaN or a fraction"
    return f"convert the column to {want} first"


def _check_batch(spec: TensorSpec, batch_size: int | None) -> list[Diagnostic]:
    fixed = fixed_batch([spec])
    if batch_size is None or fixed is None or fixed == batch_size:
        return []
    return [
        Diagnostic(
            T114,
            f"`{spec.name}` takes batches of exactly {fixed}",
            found=f"batch_size={batch_size}",
            needed=f"batch_size={fixed}",
            hint="if nothing in the model needs that size, free the first dimension of its inputs and outputs before "
            "make_trainable (`onnx.tools.update_model_dims`); or use that size, and an optimizer with `accumulate`",
        )
    ]


def fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    """Return the batch size the model was made for; None when it is free."""
    for spec in specs:
        if spec.shape and isinstance(spec.shape[0], int):
            return spec.shape[0]
    return None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a `TensorSpec`; the small float types come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return small


def _may_cast(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    if have == want:
        return True
    if want.kind == "O":  # text
        return have.kind in "UT"
    if _is_float(want):
        return _is_float(have) or have.kind in "iub"
    if want.kind in "iu":
        return have.kind in "iub"
    return want.kind == have.kind


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _cast(array: np.ndarray, dtype: np.dtype[Any], name: str, column: str) -> np.ndarray:
    if array.dtype == dtype:
        return np.asarray(array, order="C")
    if not _may_cast(array.dtype, dtype):
        raise DataError(
            Diagnostic(
                T112,
                f"a batch of column `{column}` has the wrong element type for `{name}`",
                found=str(array.dtype),
                needed=str(dtype),
                hint=_type_hint(array.dtype, dtype, column),
            )
        )
    out = array.astype(dtype)
    if dtype.kind in "iu" and not np.can_cast(array.dtype, dtype) and not np.array_equal(out, array):
        bad = array[out != array].ravel()[0]
        raise DataError(
            Diagnostic(
                T113,
                f"column `{column}` holds {bad}, which `{name}` ({dtype}) cannot hold",
                needed=f"numbers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}",
            )
        )
    return np.asarray(out, order="C")


def _one_hot(array: np.ndarray, classes: int, name: str, dtype: np.dtype[Any]) -> np.ndarray:
    if array.ndim > 1 and array.shape[-1] == 1:
        array = array[..., 0]
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= classes:
        raise DataError(
            Diagnostic(
                T113,
                f"a label for `{name}` is out of range",
                found=f"labels from {low} to {high}",
                needed=f"0 to {classes - 1}",
            )
        )
    return np.asarray(array[..., None] == np.arange(classes), dtype=dtype)


def _fits(shape: Sequence[Any], model: Sequence[int | str | None]) -> bool:
    return len(shape) == len(model) and all(
        not isinstance(want, int) or have is None or have == want for have, want in zip(shape, model, strict=True)
    )


def _plan_shape(shape: Sequence[Any], model: Sequence[int | str | None]) -> tuple[int, ...] | None:
    """Return the shape to reshape to (the batch as given, or -1 when unknown), or None when the column does not fit."""
    shape = tuple(shape)
    as_target = tuple(-1 if d is None else d for d in shape)
    rest = model[1:]  # the first dimension of a batch is checked by the batch size
    if not model or not shape:
        return as_target if _fits(shape, model) else None
    if _fits(shape[1:], rest):
        return as_target
    for axis in range(1, len(model)):  # one axis of size 1 more
        if model[axis] == 1 and _fits((*shape[1:axis], 1, *shape[axis:]), rest):
            return (*as_target[:axis], 1, *as_target[axis:])
    for axis in range(1, len(shape)):  # one axis of size 1 less
        if shape[axis] == 1 and _fits((*shape[1:axis], *shape[axis + 1 :]), rest):
            return (*as_target[:axis], *as_target[axis + 1 :])
    if len(model) == 2 and len(shape) > 2 and None not in shape[1:] and model[1] == math.prod(shape[1:]):
        return (as_target[0], math.prod(shape[1:]))
    return None


def fits_shape(shape: Sequence[Any], model: Sequence[int | str | None]) -> bool:
    """Return whether a column of this shape can be fed to an input or target of the model."""
    return _plan_shape(shape, model) is not None


def _shape_problem(spec: TensorSpec, column: str, shape: Sequence[Any], dtype: str = "", hint: str = "") -> Diagnostic:
    return Diagnostic(
        T111,
        f"column `{column}` does not have the shape of `{spec.name}`",
        found=f"data: {_show(TensorSpec(column, dtype, tuple(shape)))}",
        needed=f"model: {_show(spec)}",
        hint=hint,
    )


def _show(spec: TensorSpec) -> str:
    """Return `name float32 (N, 1, 28, 28)`."""
    dims = ["N" if i == 0 and d is None else "?" if d is None else str(d) for i, d in enumerate(spec.shape)]
    return f"`{spec.name}` {spec.dtype} ({', '.join(dims)}{',' if len(dims) == 1 else ''})".replace("  ", " ")
