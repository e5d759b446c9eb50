"""Tables of pandas, polars and pyarrow, dicts of columns and lists of records, all as one `Frame` of numpy columns.

No library is imported here: an object is recognised by where its class comes from.
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import a_or_an
from onward.errors import DataError, Diagnostic
from onward.train.data.source import T105, T106

T142 = "T142"

_FRAMES = {
    "pandas": ("DataFrame",),
    "polars": ("DataFrame", "LazyFrame"),
    "pyarrow": ("Table", "RecordBatch"),
}


@dataclasses.dataclass(frozen=True)
class RawColumn:
    """One column as it came: numbers, text (an object array of str), or one array per row; and where it is missing."""

    name: str
    values: np.ndarray
    missing: np.ndarray

    @property
    def is_text(self) -> bool:
        return self.values.dtype.kind == "O"

    @property
    def present(self) -> np.ndarray:
        """The values that are not missing."""
        return np.asarray(self.values[~self.missing])

    def take(self, rows: np.ndarray) -> RawColumn:
        """Return some rows."""
        return RawColumn(self.name, self.values[rows], self.missing[rows])


class Frame:
    """Columns of equal length by name. `place` says in errors where the table comes from."""

    def __init__(self, columns: Mapping[str, np.ndarray | RawColumn], place: str) -> None:
        self.place = place
        self.class_names: Mapping[str, Sequence[str]] = {}
        """The names behind columns of class numbers, where the table says them."""
        self._given = dict(columns)
        self._raw: dict[str, RawColumn] = {}
        lengths = {n: len(c.values if isinstance(c, RawColumn) else c) for n, c in self._given.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                Diagnostic(
                    T105,
                    "the columns have different numbers of samples",
                    place=place,
                    found=", ".join(f"`{n}`: {k}" for n, k in lengths.items()),
                    needed="the same number in each",
                )
            )
        self.size = next(iter(lengths.values()), 0)
        if not self.size:
            raise DataError(
                Diagnostic(
                    T106,
                    "the data holds no samples",
                    place=place,
                    found=f"{list_columns(list(columns))} and no rows",
                    needed="at least one sample",
                )
            )

    @property
    def names(self) -> list[str]:
        return list(self._given)

    def __getitem__(self, name: str) -> RawColumn:
        """Return a column; what it holds is examined at the first use.

        Raises:
            DataError: it holds what is neither numbers nor text, such as dates.
        """
        if name not in self._raw:
            given = self._given[name]
            self._raw[name] = given if isinstance(given, RawColumn) else _examined(name, given, self.place)
        return self._raw[name]

    def take(self, rows: np.ndarray) -> Frame:
        """Return some rows."""
        columns = {**self._given, **self._raw}
        return Frame({n: c.take(rows) if isinstance(c, RawColumn) else c[rows] for n, c in columns.items()}, self.place)

    def joined(self, y: Any, names: Sequence[str]) -> Frame:
        """Return the frame with the targets `y` as further columns: a series, an array, or a table."""
        other = Frame.of(y) if frame_library(y) or isinstance(y, Mapping) else None
        if other is not None:
            return Frame({**self._given, **{n: other._given[n] for n in other.names}}, self.place)
        return Frame({**self._given, (names[0] if names else "target"): _series(y)}, self.place)

    @classmethod
    def of(cls, table: Any, place: str = "") -> Frame | None:
        """Return the table as a frame; None for what is not a table.

        >>> Frame.of([{"age": 3, "kind": "a"}, {"age": 4, "kind": "b"}]).names
        ['age', 'kind']
        """
        library = frame_library(table)
        if library == "pandas":
            return cls(_pandas_columns(table), place or "the pandas DataFrame")
        if library == "polars":
            if type(table).__name__ == "LazyFrame":
                table = table.collect()
            return cls({s.name: _polars_array(s) for s in table.get_columns()}, place or "the polars DataFrame")
        if library == "pyarrow":
            columns = {n: _arrow_array(table.column(i)) for i, n in enumerate(table.schema.names)}
            return cls(columns, place or f"the pyarrow {type(table).__name__}")
        if isinstance(table, Mapping):
            return cls({str(n): _plain(v) for n, v in table.items()}, place or "the dict of columns")
        if is_records(table):
            return cls(_records(table), place or "the list of samples")
        return None


def frame_library(table: Any) -> str:
    """Return the library whose table this is; an empty text for anything else."""
    for kind in type(table).__mro__:
        library = kind.__module__.partition(".")[0]
        if kind.__name__ in _FRAMES.get(library, ()):
            return library
    return ""


def is_records(table: Any) -> bool:
    """Return whether this is a list of dicts whose values are single numbers or text: the rows of a table."""
    if not isinstance(table, (list, tuple)) or not table or not all(isinstance(row, Mapping) for row in table):
        return False
    return all(np.ndim(v) == 0 and not hasattr(v, "shape") for v in table[0].values())


def list_columns(columns: Sequence[str]) -> str:
    """Return the columns as a message lists them.

    >>> list_columns(["a", "b"])
    '2 columns: `a`, `b`'
    """
    shown = ", ".join(f"`{c}`" for c in columns[:12])
    return f"{len(columns)} columns: {shown}{', …' if len(columns) > 12 else ''}"


def _pandas_columns(table: Any) -> dict[str, np.ndarray]:
    names = [str(c) for c in table.columns]
    doubled = sorted({n for n in names if names.count(n) > 1})
    if doubled:
        raise DataError(
            Diagnostic(
                T142,
                "several columns have the same name: " + ", ".join(f"`{n}`" for n in doubled),
                place="the pandas DataFrame",
                needed="a name of its own for each column",
            )
        )
    return {name: _pandas_array(table.iloc[:, i]) for i, name in enumerate(names)}


def _pandas_array(series: Any) -> np.ndarray:
    kind = getattr(series.dtype, "kind", "O")
    if kind in "iufb":
        missing = bool(series.isna().any())
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan) if missing else series.to_numpy())
    if kind in "mM":
        return np.asarray(series.to_numpy())
    values = np.asarray(series.astype(object).to_numpy(dtype=object)).copy()
    values[series.isna().to_numpy()] = None
    return values


def _polars_array(series: Any) -> np.ndarray:
    if series.dtype.is_numeric() or str(series.dtype) == "Boolean":
        if series.null_count():
            return np.asarray(series.cast(_float_type(series)).to_numpy())
        return np.asarray(series.to_numpy())
    if series.dtype.is_temporal():
        return np.asarray(series.to_numpy())
    return _objects(series.to_list())


def _float_type(series: Any) -> Any:
    import importlib

    return importlib.import_module("polars").Float64  # the user passed its series, so it is there


def _arrow_array(column: Any) -> np.ndarray:
    kind = str(column.type)
    if kind.startswith("dictionary"):
        return _objects(column.to_pylist())
    if kind.startswith(("int", "uint", "float", "double", "halffloat", "bool")):
        return np.asarray(column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False))
    if kind.startswith(("date", "time", "duration")):
        return np.asarray(column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False))
    return _objects(column.to_pylist())


def _series(values: Any) -> np.ndarray:
    """Return one column of any library, or an array or list, as an array."""
    library = type(values).__module__.partition(".")[0]
    if library == "pandas" and hasattr(values, "isna"):
        return _pandas_array(values)
    if library == "polars" and hasattr(values, "null_count"):
        return _polars_array(values)
    return _arrow_array(values) if library == "pyarrow" else _plain(values)


def _plain(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, (list, tuple)) and any(v is None or isinstance(v, str) for v in value):
        return _objects(list(value))
    return np.atleast_1d(np.asanyarray(value))


def _records(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    names = list(dict.fromkeys(str(k) for row in rows for k in row))
    return {n: _objects([row.get(n) for row in rows]) for n in names}


def _objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _examined(name: str, array: np.ndarray, place: str) -> RawColumn:
    """Return the column with its missing cells found, and its objects as numbers or text."""
    array = np.asarray(array)
    if array.dtype.kind in "fiub":
        gaps = np.asarray(np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool))
        return RawColumn(name, array, np.asarray(gaps.reshape(len(array), -1).any(axis=1)))
    if array.dtype.kind in "mM":
        raise _unusable(name, place, "dates or times", "turn them into numbers first, such as the year")
    cells = array.astype(object).tolist()
    if array.dtype.kind == "S":
        cells = [c.decode("utf-8") if isinstance(c, bytes) else c for c in cells]
    missing = np.array([_is_missing(c) for c in cells], dtype=bool)
    present = [c for c, gone in zip(cells, missing, strict=True) if not gone]
    if all(isinstance(c, str) for c in present):
        text = _objects(["" if gone else c for c, gone in zip(cells, missing, strict=True)])
        return RawColumn(name, text, missing)
    if all(isinstance(c, (bool, np.bool_, int, float, np.number, decimal.Decimal)) for c in present):
        whole = not missing.any() and all(isinstance(c, (bool, int, np.bool_, np.integer)) for c in present)
        numbers = [np.nan if gone else c for c, gone in zip(cells, missing, strict=True)]
        return RawColumn(name, np.array(numbers, dtype=np.int64 if whole else np.float64), missing)
    if all(isinstance(c, (list, tuple, np.ndarray)) or hasattr(c, "__array__") for c in present):
        return _stacked(name, cells, missing, place)
    odd = next(c for c in present if not isinstance(c, str))
    if any(isinstance(c, str) for c in present):
        word = next(c for c in present if isinstance(c, str))
        raise DataError(
            Diagnostic(
                T142,
                f"column `{name}` holds text and other things",
                place=place,
                found=f"such as {word!r} and {str(odd)[:40]!r}",
                needed="numbers alone, or text alone",
            )
        )
    raise _unusable(name, place, f"{a_or_an(odd)} in each row", "turn it into numbers or text first")


def _is_missing(cell: Any) -> bool:
    if cell is None or (isinstance(cell, str) and cell == ""):
        return True
    if isinstance(cell, (float, np.floating)):
        return bool(np.isnan(cell))
    return type(cell).__name__ in ("NAType", "NaTType")


def _stacked(name: str, cells: Sequence[Any], missing: np.ndarray, place: str) -> RawColumn:
    shapes = {np.shape(c) for c, gone in zip(cells, missing, strict=True) if not gone}
    if missing.any() or len(shapes) > 1:
        found = f"{int(missing.sum())} empty cells" if missing.any() else f"shapes {sorted(shapes)[:3]}"
        raise DataError(
            Diagnostic(
                T142,
                f"the arrays in column `{name}` cannot be stacked",
                place=place,
                found=found,
                needed="an array of the same shape in every row",
            )
        )
    array = np.stack([np.asarray(c) for c in cells])
    if array.dtype.kind not in "fiub":
        raise _unusable(name, place, "arrays of something else than numbers", "turn them into numbers first")
    return RawColumn(name, array, missing)


def _unusable(name: str, place: str, found: str, hint: str) -> DataError:
    return DataError(
        Diagnostic(
            T142,
            f"column `{name}` holds neither numbers nor text",
            place=place,
            found=found,
            needed="numbers or text",
            hint=f"{hint}, or leave the column out: features=[…]",
        )
    )
