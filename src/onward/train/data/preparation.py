"""How data is prepared for a model: scaling, one-hot encoding, names of columns and classes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import A101, ArgumentError, Diagnostic

Numbers = float | Sequence[float]


def _are_numbers(value: Any, zero: bool, several: bool) -> bool:
    """Return whether `value` is a finite number, or a list of them where `several` are allowed."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal length
        return False
    if array.dtype.kind not in "fiu" or not array.size or array.ndim > int(several):
        return False
    return bool(np.isfinite(array).all() and (zero or (array != 0).all()))


def _is_text_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(t, str) for pair in value.items() for t in pair)


def _are_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """How data is prepared for the model; kept in checkpoints.

    Each float input x becomes (x * scale - mean) / std; `mean` and `std` hold one number or one per channel (axis 1).
    `one_hot` encodes integer targets as rows of 0 and 1 with the width the model declares. `columns` maps a name of the
    model to a column of the data. `classes` are the class names of the training data, if it has names; other data gets
    the same class numbers. `table` holds the columns of the training table for each name of the model; a table with
    another order of columns is read the same way.
    """

    scale: float = 1.0
    mean: Numbers = 0.0
    std: Numbers = 1.0
    one_hot: bool = False
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classes: tuple[str, ...] = ()
    table: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise for values of the wrong kind, and for a scale or std of 0."""
        rules = (
            ("scale", "a finite number other than 0", _are_numbers(self.scale, zero=False, several=False)),
            ("mean", "a finite number, or one per channel", _are_numbers(self.mean, zero=True, several=True)),
            ("std", "a finite number other than 0, or one per channel", _are_numbers(self.std, False, True)),
            ("one_hot", "True or False", isinstance(self.one_hot, bool)),
            ("columns", "a dict: name of the model -> column of the data", _is_text_map(self.columns)),
            ("classes", "a tuple of names", _are_names(self.classes)),
        )
        problems = [
            Diagnostic(A101, f"{name} is {getattr(self, name)!r}", place="the preparation of the data", needed=needed)
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data = dataclasses.asdict(self)
        for key in ("mean", "std"):
            data[key] = np.asarray(data[key], dtype=np.float64).tolist()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preparation:
        """Return the preparation that `as_dict` described."""
        table = {name: list(columns) for name, columns in data.get("table", {}).items()}
        return cls(**{**data, "classes": tuple(data["classes"]), "table": table})
