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
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from onward.arguments import a_or_an, did_you_mean, nearest
from onward.backends.processes import Rows
from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic, OnwardError
from onward.graph.shapes import UNPROVEN
from onward.train.data.arrays import to_array
from onward.train.data.feed import (
    T111,
    T112,
    Feed,
    may_cast,
    numpy_dtype,
    plan_shape,
    shape_problem,
    show_spec,
    type_hint,
)
from onward.train.data.lengths import Lengths, labels_of
from onward.train.data.preparation import Preparation
from onward.train.data.source import T107, ArrayColumn, Batch, ColumnSource, DataSource

T110 = "T110"
T114 = "T114"


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
    lengths: Lengths | None = None,
) -> Matching:
    """Return how the source feeds the model.

    With `lenient`, a column of another name feeds the one input, or the one target, that has none, if no other can.
    `lengths` are the targets that can be derived from labels, where the data has no column for them.

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
    mapping = {n: c if isinstance(c, str) else ",".join(c) for n, c in preparation.columns.items()}
    derived: list[TensorSpec] = []
    if lengths is not None and len(columns) < len(inputs) + len(targets):
        derived = lengths.absent(targets, {*columns, *mapping})
        targets = [spec for spec in targets if spec not in derived]
    wanted = [(spec, False) for spec in inputs] + [(spec, True) for spec in targets]
    if lenient and not source.positional:
        mapping = {**_only_choices(columns, inputs, targets, mapping), **mapping}
    if source.renamed or (source.positional and not set(mapping.values()) & set(columns)):
        mapping = {}  # already applied to a table, or meant for other data: the position decides
    chosen, problems = _choose_columns(
        columns, [spec for spec, _ in wanted], source.positional, mapping, bool(targets), source.nameless
    )
    feeds: list[Feed] = []
    for spec, is_target in wanted:
        if spec.name not in chosen:
            continue
        planned, problem = _plan_feed(spec, columns[chosen[spec.name]], is_target, preparation)
        if problem:
            problems.append(problem)
        feeds.append(planned)
        problems += _check_batch(spec, batch_size)
    if problems:
        raise DataError(problems)
    if lengths is not None:
        made = [lengths.feed(spec, chosen[labels_of(spec)], numpy_dtype(spec.dtype)) for spec in derived]
        for feed in made:  # labels in memory are looked at before the first step
            column = source.columns[feed.column] if isinstance(source, ColumnSource) else None
            if isinstance(column, ArrayColumn):
                feed.make(np.asarray(column.array))
        feeds += made
    return Matching(feeds, sizes)


def _only_choices(
    columns: Mapping[str, TensorSpec],
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
    mapping: Mapping[str, str],
) -> dict[str, str]:
    """Return column for the one input without a column, and for the one target without, where only one can be meant."""
    found: dict[str, str] = {}
    taken = {mapping.get(s.name, s.column_in(columns)) for s in (*inputs, *targets)}
    for specs in (inputs, targets):
        missing = [s for s in specs if s.name not in mapping and s.column_in(columns) not in columns]
        free = [c for c in columns.values() if c.name not in taken]
        if len(missing) == 1:
            (spec,) = missing
            fitting = [c for c in free if plan_shape(tuple(c.shape), spec.shape) is not None]
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
    found = "data: " + (", ".join(show_spec(s) for s in columns.values()) or "no columns")
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
    by_position = positional and (nameless or not any(s.column_in(columns) in columns for s in wanted))
    if by_position and (len(columns) < len(wanted) or (exact and len(columns) > len(wanted))):
        problems.append(
            Diagnostic(
                T110,
                f"the data has {len(columns)} columns and the model takes {len(wanted)}",
                found=found,
                needed="model: " + ", ".join(show_spec(s) for s in wanted) + " in this order",
            )
        )
        return chosen, problems
    names = list(columns)
    for i, spec in enumerate(wanted):
        name = mapping.get(spec.name, names[i] if by_position else spec.column_in(columns))
        if name in columns:
            chosen[spec.name] = name
        else:
            problems.append(
                Diagnostic(
                    T110,
                    f"no column `{name}` in the data",
                    found=found,
                    needed=f"model: {show_spec(spec)}",
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
    codable = is_target and have.kind in "iu" and len(spec.shape) >= 2 and plan_shape(shape, spec.shape) is None
    if preparation.one_hot and is_target and have.kind in "iu":
        if not isinstance(width, int):
            return feed, Diagnostic(
                T112,
                f"one-hot coding of `{spec.name}` needs the number of classes",
                found=f"model: {show_spec(spec)}",
                needed="a target whose last dimension is a number",
            )
        shape = (*(shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape), width)
        feed = dataclasses.replace(feed, classes=width)
        have = dtype
    hint = "integer classes become rows of 0 and 1 with one_hot=True" if codable else ""
    if is_target and dtype.kind in "iu" and len(shape) == len(spec.shape) + 1:
        hint = f"the model takes class numbers; from rows of one number per class: {column.name}.argmax(axis=-1)"
    if plan_shape(shape, spec.shape) is None:
        return feed, shape_problem(spec, column.name, column.shape, column.dtype, hint)
    if not may_cast(have, dtype):
        return feed, Diagnostic(
            T112,
            f"column `{column.name}` has the wrong element type for `{spec.name}`",
            found=f"data: {show_spec(column)}",
            needed=f"model: {show_spec(spec)}",
            hint=hint or type_hint(have, dtype, column.name),
        )
    return feed, None


def _column_hint(wanted: str, missing: str, names: Sequence[str]) -> str:
    near = nearest(missing, names, n=1)
    if near:
        return f"did you mean `{near[0]}`? columns={{'{wanted}': '{near[0]}'}} reads it"
    return f"say which column to use: columns={{'{wanted}': '…'}}"


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
