"""Training data from anywhere: arrays, files, folders, iterables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onward.arguments import a_or_an
from onward.compiler.program import TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.data.arrays import to_array
from onward.train.data.frame import Frame, frame_library, is_records
from onward.train.data.iterable import IterableSource
from onward.train.data.matching import T110, Matching, match
from onward.train.data.preparation import Preparation
from onward.train.data.samples import is_of, open_samples
from onward.train.data.source import (
    ArrayColumn,
    BatchRequest,
    ColumnSource,
    DataSource,
    epoch_order,
)
from onward.train.data.table import TableSource

Data: TypeAlias = (
    np.ndarray | Mapping[str, Any] | Iterable[Any] | Callable[..., Iterable[Any]] | DataSource | str | Path
)
__all__ = [
    "BatchRequest",
    "ColumnSource",
    "Data",
    "DataSource",
    "IterableSource",
    "Matching",
    "Preparation",
    "as_source",
    "epoch_order",
    "match",
]


def as_source(
    x: Data,
    y: Any,
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
    preparation: Preparation,
    steps_per_epoch: int | None = None,
    part: str = "train",
) -> DataSource:
    """Return the source for what was given to `fit`, `evaluate` or `predict`.

    An array, or a tuple or list of arrays, is data in memory (`y` likewise); a dict is data in memory by name; a table
    of pandas, polars or pyarrow, and a list of dicts of single values, is a table; datasets of torch and Hugging Face,
    and lists of samples, are samples; a path is opened; any other iterable, and a function that returns one, gives
    batches.
    """
    if isinstance(x, DataSource):
        _no_target(y, "a DataSource")
        return x
    text = any(s.dtype == "object" for s in inputs)
    frame = _as_frame(x, y, targets, preparation, text)
    samples = open_samples(x, inputs, targets, part, preparation) if frame is None and y is None else None
    if isinstance(samples, DataSource):
        return samples
    frame = frame or samples
    if frame is not None:
        return TableSource.of(frame, inputs, targets, preparation, may_fit=part == "train")
    if isinstance(x, (str, Path)):
        _no_target(y, "a path")
        from onward.train.data.files import open_data

        return open_data(x, inputs, targets, part=part, preparation=preparation)
    if isinstance(x, Mapping):
        columns = _by_name(x, text)
        if y is not None:
            columns |= _named("y", y, targets)
        return ColumnSource(columns, place="the arrays given to the trainer")
    if _is_array(x) or y is not None or (isinstance(x, tuple) and all(_is_array(v) for v in x)):
        columns = _named("x", x, inputs if y is not None else [*inputs, *targets], text)
        if y is not None:
            columns |= _named("y", y, targets)
        return ColumnSource(columns, positional=True, place="the arrays given to the trainer")
    if isinstance(x, Iterable) or callable(x):
        return IterableSource(x, steps_per_epoch=steps_per_epoch, text=text)
    raise ArgumentError(
        Diagnostic(
            A101,
            f"{a_or_an(x)} is not training data",
            needed="arrays, a dict of arrays, a path, a DataSource, or an iterable of batches",
        )
    )


def _no_target(y: Any, what: str) -> None:
    if y is not None:
        raise ArgumentError(Diagnostic(A101, f"y was given, and {what} already holds the targets", needed="y=None"))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "__array__") and hasattr(value, "shape"))


def _as_frame(x: Any, y: Any, targets: Sequence[TensorSpec], preparation: Preparation, text: bool) -> Frame | None:
    """Return what was given as a table, if it is one, with the targets `y`; None for anything else.

    A dict of arrays is a table if columns were chosen by name, or if it holds text that the model does not take.
    """
    if isinstance(x, Mapping) and not is_of(x, "datasets", "DatasetDict", "IterableDatasetDict"):
        chosen = any(not isinstance(c, str) for c in preparation.columns.values()) or bool(preparation.features)
        if not chosen and (text or not any(_holds_text(v) for v in x.values())):
            return None
    elif not frame_library(x) and not is_records(x):
        return None
    frame = Frame.of(x)
    return frame if frame is None or y is None else frame.joined(y, [t.name for t in targets])


def _holds_text(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(v, str) or v is None for v in value)
    return isinstance(value, np.ndarray) and value.dtype.kind in "OUT" and value.ndim == 1


def _by_name(values: Mapping[str, Any], text: bool = False) -> dict[str, ArrayColumn]:
    return {str(name): ArrayColumn(to_array(value, f"`{name}`", text=text)) for name, value in values.items()}


def _named(argument: str, values: Any, specs: Sequence[TensorSpec], text: bool = False) -> dict[str, Any]:
    """Return columns named after the model's inputs or targets in order; without any, numbered."""
    if isinstance(values, Mapping):
        return _by_name(values, text)
    several = isinstance(values, (tuple, list)) and len(values) > 0 and all(_is_array(v) for v in values)
    parts = list(values) if several else [values]
    if specs and len(parts) > len(specs):
        raise DataError(
            Diagnostic(
                T110,
                f"{argument} holds {len(parts)} arrays",
                needed=f"{len(specs)}: " + ", ".join(f"`{s.name}`" for s in specs),
            )
        )
    names = [s.name for s in specs] + [f"array[{i}]" for i in range(len(specs), len(parts))]
    return _by_name(dict(zip(names, parts, strict=False)), text)
