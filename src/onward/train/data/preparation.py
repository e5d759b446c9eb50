"""How data is prepared for a model: scaling, one-hot encoding, names of columns and classes, features of tables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import is_number, shown
from onward.errors import A101, ArgumentError, Diagnostic
from onward.train.data.features import ENCODINGS, FILLS, RESCALES, UNKNOWN, Feature, Missing, Wishes

Numbers = float | Sequence[float]
DAMAGED = ("error", "skip")


def _are_numbers(value: Any, zero: bool, several: bool) -> bool:
    """Return whether `value` is a finite number, or a list of them where `several` are allowed."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal length
        return False
    if array.dtype.kind not in "fiu" or not array.size or array.ndim > int(several):
        return False
    return bool(np.isfinite(array).all() and (zero or (array != 0).all()))


def _is_column_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and (isinstance(columns, str) or _are_names(columns)) for name, columns in value.items()
    )


def _are_fills(value: Any) -> bool:
    """Return whether `value` says what stands for missing values: a word, a number, or one of them per column."""
    if isinstance(value, Mapping):
        return all(isinstance(c, str) and (isinstance(v, str) or is_number(v)) for c, v in value.items())
    return value in FILLS if isinstance(value, str) else is_number(value) and bool(np.isfinite(value))


def _are_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


@dataclasses.dataclass(frozen=True, repr=False)
class Preparation:
    """How data is prepared for the model; kept in checkpoints and in saved models.

    Each float input x becomes (x * scale - mean) / std; `mean` and `std` hold one number or one per channel (axis 1).
    `one_hot` encodes integer targets as rows of 0 and 1 with the width the model declares. `columns` maps a name of the
    model to a column of the data, or to several of a table. `classes` are the class names of the training data, if it
    has names; other data gets the same class numbers. `table` holds the columns of the training table for each name of
    the model; a table with another order of columns is read the same way. `damaged` says what becomes of an image file
    that cannot be decoded: "error", or "skip": every image is decoded before the first step, and a warning names those
    that are left out. It is about the files at hand, so neither a checkpoint nor a model keeps it.

    The other fields are for the inputs of tables. `fit` finds `features` on the training rows alone:

    Args:
        missing: what stands for a missing value: "mean", "median" or "most_frequent" of the column, a number, or a dict
            with one of these, or a text, per column. "auto": the median, or the most frequent category, in the columns
            that lack values in the training rows; elsewhere a missing value is an error. "error": nothing does.
        missing_indicator: columns that lack values in the training rows get one more number, 1 where it was missing.
        categories: what becomes of a category: "one_hot", "codes" (0, 1, … in sorted order), or "auto": what fits the
            width of the model's input, and codes for an input of integers.
        categorical: columns of numbers that are categories.
        unknown: a category that the training rows did not have is an "error", or "ignore": in one-hot rows all 0, in
            codes the most frequent category.
        rescale: "standard" makes the mean of each column of numbers 0 and its standard deviation 1, "min_max" its range
            0 to 1; "none".
        features: what `fit` found, by input of the model; given by `fit`, not by you.
    """

    scale: float = 1.0
    mean: Numbers = 0.0
    std: Numbers = 1.0
    one_hot: bool = False
    columns: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)
    classes: tuple[str, ...] = ()
    table: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    missing: Missing | Mapping[str, Missing] = "auto"
    missing_indicator: bool = False
    categories: str = "auto"
    categorical: tuple[str, ...] = ()
    unknown: str = "error"
    rescale: str = "none"
    damaged: str = "error"
    features: Mapping[str, tuple[Feature, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise for values of the wrong kind, and for a scale or std of 0."""
        rules = (
            ("scale", "a finite number other than 0", _are_numbers(self.scale, zero=False, several=False)),
            ("mean", "a finite number, or one per channel", _are_numbers(self.mean, zero=True, several=True)),
            ("std", "a finite number other than 0, or one per channel", _are_numbers(self.std, False, True)),
            ("one_hot", "True or False", isinstance(self.one_hot, bool)),
            ("columns", "a dict: name of the model -> column or columns of the data", _is_column_map(self.columns)),
            ("classes", "a tuple of names", _are_names(self.classes)),
            ("missing", f"one of: {', '.join(FILLS)}; a number, or a dict by column", _are_fills(self.missing)),
            ("missing_indicator", "True or False", isinstance(self.missing_indicator, bool)),
            ("categories", f"one of: {', '.join(ENCODINGS)}", self.categories in ENCODINGS),
            ("categorical", "a tuple or list of columns", _are_names(self.categorical)),
            ("unknown", f"one of: {', '.join(UNKNOWN)}", self.unknown in UNKNOWN),
            ("rescale", f"one of: {', '.join(RESCALES)}", self.rescale in RESCALES),
            ("damaged", f"one of: {', '.join(DAMAGED)}", self.damaged in DAMAGED),
        )
        problems = [
            Diagnostic(A101, f"{name} is {shown(getattr(self, name))}", place="the preparation", needed=needed)
            for name, needed, right in rules
            if not right
        ]
        if problems:
            raise ArgumentError(problems)

    @functools.cached_property
    def normalises(self) -> bool:
        """True when the numbers of an input change."""
        changes = (self.scale != 1.0, np.any(np.asarray(self.mean) != 0.0), np.any(np.asarray(self.std) != 1.0))
        return any(bool(c) for c in changes)

    @property
    def wishes(self) -> Wishes:
        """What is asked for the features of a table."""
        return Wishes(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Wishes)})

    def summary(self) -> list[str]:
        """Return what `fit` found for each column of a table, in words; nothing for data that needs none of it."""
        return [f"{f.column}: {f.describe()}" for name in self.features for f in self.features[name] if not f.is_plain]

    def __repr__(self) -> str:
        plain = {f.name: _default(f) for f in dataclasses.fields(self)}
        changed = [f"{n}={shown(getattr(self, n))}" for n in plain if n != "features" and getattr(self, n) != plain[n]]
        lines = [f"\n  {line}" for line in self.summary()]
        return f"Preparation({', '.join(changed)})" + "".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "damaged"}
        for key in ("mean", "std"):
            data[key] = np.asarray(data[key], dtype=np.float64).tolist()
        data["columns"] = {n: c if isinstance(c, str) else list(c) for n, c in self.columns.items()}
        data["table"] = {n: list(c) for n, c in self.table.items()}
        data["missing"] = dict(self.missing) if isinstance(self.missing, Mapping) else self.missing
        data["features"] = {n: [f.as_dict() for f in found] for n, found in self.features.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preparation:
        """Return the preparation that `as_dict` described."""
        features = {n: tuple(map(Feature.from_dict, found)) for n, found in data.get("features", {}).items()}
        table = {name: list(columns) for name, columns in data.get("table", {}).items()}
        tuples = {key: tuple(data.get(key, ())) for key in ("classes", "categorical")}
        return cls(**{**data, **tuples, "table": table, "features": features})


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
