"""How a column of a table becomes the numbers that a model takes: fitted once on the training rows, then applied alike.

All numbers are computed in float64, in the order that the ONNX form of a preparation (`embed.py`) uses, so that both
give the same bits.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import DataError, Diagnostic
from onward.train.data.frame import T142, RawColumn

T143 = "T143"

FILLS = ("auto", "error", "mean", "median", "most_frequent")
ENCODINGS = ("auto", "one_hot", "codes")
RESCALES = ("none", "standard", "min_max")
UNKNOWN = ("error", "ignore")

Category = str | float
Missing = str | float


@dataclasses.dataclass(frozen=True)
class Feature:
    """What is done with one column. `kind` is "number", "category", or "text" for an input that takes text.

    A missing value becomes `fill`; if that is None, it is refused, or stays NaN where the model takes it (`keeps_nan`).
    A number x becomes (x - shift) / scale. A category becomes a row of 0 and 1 ("one_hot") or its place in `categories`
    ("codes"). With `indicator`, one more number is 1 where the value is missing.
    """

    column: str
    kind: str = "number"
    fill: Category | None = None
    keeps_nan: bool = False
    indicator: bool = False
    shift: float = 0.0
    scale: float = 1.0
    categories: tuple[Category, ...] = ()
    encoding: str = "one_hot"
    unknown: str = "error"
    common: int = 0
    """The place of the most frequent category, which stands for an unknown one in `codes`."""
    seen_missing: int = 0
    """How many training rows lacked the value."""

    @property
    def is_plain(self) -> bool:
        """Whether a value passes as it is."""
        unchanged = self.shift == 0.0 and self.scale == 1.0
        return self.kind != "category" and self.fill is None and not self.indicator and unchanged

    @property
    def takes_text(self) -> bool:
        """Whether the raw value is text."""
        return self.kind == "text" or (self.kind == "category" and any(isinstance(c, str) for c in self.categories))

    @property
    def width(self) -> int:
        """How many numbers one value gives."""
        own = len(self.categories) if self.kind == "category" and self.encoding == "one_hot" else 1
        return own + self.indicator

    def apply(self, raw: RawColumn, place: str) -> np.ndarray:
        """Return the prepared rows, (N, width): float64, int64 for codes alone, or text.

        Raises:
            DataError: a missing value without a fill, an unknown category, or text instead of numbers.
        """
        self._check_kind(raw, place)
        missing = raw.missing
        if missing.any() and self.fill is None and not self.keeps_nan:
            raise _missing_values(raw, place)
        if self.kind == "category":
            made = self._encode(raw, place)
        elif self.kind == "text":
            made = _filled(raw, self.fill)[:, None]
        else:
            values = _filled(raw, self.fill).astype(np.float64)
            made = ((values - self.shift) / self.scale)[:, None]
        return np.concatenate([made, missing[:, None].astype(made.dtype)], axis=1) if self.indicator else made

    def _check_kind(self, raw: RawColumn, place: str) -> None:
        if raw.values.ndim > 1:
            found, needed = f"arrays of shape {raw.values.shape[1:]}", "one value in each row"
        elif raw.is_text and not self.takes_text and len(raw.present):
            found, needed = f"text, such as {raw.present[0]!r}", "numbers, as in the training data"
        elif not raw.is_text and self.takes_text and len(raw.present):
            found, needed = f"numbers, such as {raw.present[0]}", "text, as in the training data"
        else:
            return
        raise DataError(
            Diagnostic(T142, f"column `{raw.name}` does not hold what it held", place=place, found=found, needed=needed)
        )

    def _encode(self, raw: RawColumn, place: str) -> np.ndarray:
        numbers = {category: i for i, category in enumerate(self.categories)}
        values = _filled(raw, self.fill)
        cells = [str(v) for v in values] if self.takes_text else [float(v) for v in values]
        codes = np.array([numbers.get(c, -1) for c in cells], dtype=np.int64)
        unknown = codes < 0
        if unknown.any() and self.unknown == "error":
            new = list(dict.fromkeys(c for c, bad in zip(cells, unknown, strict=True) if bad))
            raise DataError(
                Diagnostic(
                    T143,
                    f"column `{raw.name}` has categories that the training data did not have: {_some(new)}",
                    place=f"{place}, first in row {int(np.argmax(unknown)) + 1}",
                    needed=f"one of: {_some(self.categories)}",
                    hint="correct them, or train with Preparation(unknown='ignore')",
                )
            )
        if self.encoding == "codes":
            return np.where(unknown, self.common, codes)[:, None]
        return np.asarray(codes[:, None] == np.arange(len(self.categories)), dtype=np.float64)

    def describe(self) -> str:
        """Return what is done, in words."""
        parts = []
        if self.kind == "category":
            how = f"{len(self.categories)} numbers of 0 and 1" if self.encoding == "one_hot" else "a code"
            parts.append(f"{len(self.categories)} categories ({_some(self.categories, 4)}) → {how}")
            if self.unknown == "ignore":
                other = "all 0" if self.encoding == "one_hot" else f"{self.categories[self.common]!r}"
                parts.append(f"unknown → {other}")
        if self.fill is not None:
            shown = repr(self.fill) if isinstance(self.fill, str) else f"{self.fill:g}"
            parts.append(f"missing ({self.seen_missing} rows) → {shown}")
        if self.keeps_nan and self.seen_missing:
            parts.append(f"missing ({self.seen_missing} rows) → NaN, which the model takes")
        if self.shift or self.scale != 1.0:
            parts.append(f"(x − {self.shift:g}) / {self.scale:g}")
        if self.indicator:
            parts.append("and 1 where it was missing")
        return ", ".join(parts) or "as it is"

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data, without what is at its default."""
        plain = Feature(self.column)
        data = dataclasses.asdict(self)
        return {k: v for k, v in data.items() if k == "column" or v != getattr(plain, k)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Feature:
        """Return the feature that `as_dict` described."""
        return cls(**{**data, "categories": tuple(data.get("categories", ()))})


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What was asked of the preparation of a table: the fields of `Preparation` of the same names."""

    missing: Missing | Mapping[str, Missing] = "auto"
    missing_indicator: bool = False
    categories: str = "auto"
    categorical: tuple[str, ...] = ()
    unknown: str = "error"
    rescale: str = "none"

    def fill_of(self, column: str) -> Missing:
        """Return what is asked for the missing values of one column."""
        if isinstance(self.missing, Mapping):
            return self.missing.get(column, "auto")
        return self.missing


def fit_feature(
    raw: RawColumn, wishes: Wishes, place: str, *, whole: bool = False, text: bool = False, keeps_nan: bool = False
) -> Feature:
    """Return what is done with a column, from its training rows.

    `whole`: the input of the model takes integers; `text`: it takes text; `keeps_nan`: it takes NaN.

    Raises:
        DataError: missing values that must not be filled, a column of missing values alone, or text that is none of
            a few categories.
    """
    asked = wishes.fill_of(raw.name)
    seen = int(raw.missing.sum())
    if not len(raw.present):
        raise DataError(
            Diagnostic(T142, f"column `{raw.name}` has no value in any training row", place=place, needed="some values")
        )
    indicator = wishes.missing_indicator and seen > 0 and not text
    feature = Feature(raw.name, indicator=indicator, seen_missing=seen)
    if raw.is_text or raw.name in wishes.categorical:
        if not text and raw.name not in wishes.categorical:
            _check_categories(raw, place)
        cells = _cells(raw)
        fill = _category_fill(raw, asked, cells, place)
        if text:
            return dataclasses.replace(feature, kind="text", fill=fill)
        counts = collections.Counter(cells)
        known = sorted({*cells} if fill is None else {*cells, fill})
        return dataclasses.replace(
            feature,
            kind="category",
            fill=fill,
            categories=tuple(known),
            unknown=wishes.unknown,
            common=int(np.argmax([counts[c] for c in known])),
            encoding="codes" if wishes.categories == "codes" else "one_hot",
        )
    if keeps_nan and asked in ("auto", "error"):
        feature = dataclasses.replace(feature, keeps_nan=True)
        fill_number = None
    else:
        fill_number = _number_fill(raw, asked, "most_frequent" if whole else "median", place)
    shift, scale = 0.0, 1.0
    if wishes.rescale != "none" and not whole:
        filled = raw.present if fill_number is None else _filled(raw, fill_number)
        shift, scale = _rescaling(filled.astype(np.float64), wishes.rescale)
    return dataclasses.replace(feature, fill=fill_number, shift=shift, scale=scale)


def _rescaling(values: np.ndarray, how: str) -> tuple[float, float]:
    """Return (shift, scale), as scikit-learn's StandardScaler and MinMaxScaler; a constant column is not scaled."""
    if how == "standard":
        shift, scale = float(values.mean()), float(values.std())
    else:
        shift, scale = float(values.min()), float(values.max() - values.min())
    return shift, scale if scale > 0 and np.isfinite(scale) else 1.0


def _number_fill(raw: RawColumn, asked: Missing, automatic: str, place: str) -> float | None:
    if not isinstance(asked, str):
        return float(asked)
    if asked == "auto":
        if not raw.missing.any():
            return None  # nothing is known of rows that lack it
        asked = automatic
    present = raw.present.astype(np.float64)
    if asked == "mean":
        return float(present.mean())
    if asked == "median":
        return float(np.median(present))
    if asked == "most_frequent":
        values, counts = np.unique(present, return_counts=True)
        return float(values[np.argmax(counts)])
    if asked != "error":
        raise DataError(
            Diagnostic(
                T142,
                f"column `{raw.name}` holds numbers, and {asked!r} cannot stand for a missing one",
                place=place,
                needed="a number, mean, median or most_frequent",
            )
        )
    if raw.missing.any():
        raise _missing_values(raw, place)
    return None


def _category_fill(raw: RawColumn, asked: Missing, cells: Sequence[Category], place: str) -> Category | None:
    if asked == "error" and raw.missing.any():
        raise _missing_values(raw, place)
    if asked == "error" or (asked == "auto" and not raw.missing.any()):
        return None
    if asked in FILLS:
        values, counts = np.unique(np.array(cells), return_counts=True)
        return values[np.argmax(counts)].item()  # type: ignore[no-any-return]  # str or float
    return str(asked) if raw.is_text else float(asked)


def _cells(raw: RawColumn) -> list[Category]:
    return [str(v) for v in raw.present] if raw.is_text else [float(v) for v in raw.present]


def _filled(raw: RawColumn, fill: Category | None) -> np.ndarray:
    if fill is None or not raw.missing.any():
        return raw.values
    values = raw.values.astype(np.float64) if not raw.is_text else raw.values.copy()
    values[raw.missing] = fill
    return values


def _check_categories(raw: RawColumn, place: str) -> None:
    """Raise for text that is more likely numbers with a slip in them, names, or whole sentences."""
    cells = list(raw.present)
    numbers = sum(_is_number(c) for c in cells)
    if 2 * numbers >= len(cells):
        odd = next((c for c in cells if not _is_number(c)), cells[0])
        found = f"text such as {odd!r} among numbers" if numbers < len(cells) else f"numbers as text, such as {odd!r}"
        hint = f"correct it, or if these are categories, say so: categorical=['{raw.name}']"
        raise DataError(
            Diagnostic(T142, f"column `{raw.name}` holds numbers as text", place=place, found=found, hint=hint)
        )
    distinct = len(set(cells))
    if distinct > 50 and 2 * distinct > len(cells):
        raise DataError(
            Diagnostic(
                T142,
                f"column `{raw.name}` holds text that is different in most rows",
                place=place,
                found=f"{distinct} different values in {len(cells)} rows, such as {cells[0]!r}",
                needed="categories, which many rows share",
                hint=f"leave the column out: features=[…]; or insist: categorical=['{raw.name}']",
            )
        )


def _is_number(text: str) -> bool:
    try:
        float(text.strip().replace(",", "."))
    except ValueError:
        return False
    return True


def _missing_values(raw: RawColumn, place: str) -> DataError:
    return DataError(
        Diagnostic(
            T142,
            f"column `{raw.name}` has {int(raw.missing.sum())} empty cells",
            place=f"{place}, first in row {int(np.argmax(raw.missing)) + 1}",
            needed="a value in every row, as in the training data",
            hint=f"drop those rows, or train with Preparation(missing={{'{raw.name}': 'median'}})",
        )
    )


def _some(values: Sequence[Any], most: int = 8) -> str:
    shown = ", ".join(repr(v) if isinstance(v, str) else f"{v:g}" for v in values[:most])
    return shown + (", …" if len(values) > most else "")
