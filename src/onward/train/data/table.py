"""Tables: columns of CSV and Parquet files and of frames to the inputs and targets of a model, by name.

For each input or target `x` of the model, in this order:

1. the columns named in `columns={"x": "a,b,c"}` (on the command line `--column x=a,b,c`), `target=` or `features=`;
2. the column `x`, or the columns `x_0, x_1, …` (also `x.0` and `x[0]`);
3. for the last one left: all columns that nothing else has taken, in the order of the table.

Text in a target column becomes class numbers, the names sorted. Inputs that hold text, lack values or are to be
rescaled are prepared by features (`features.py`), which are fitted on training rows alone.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic, counted, require_extra
from onward.train.data.choice import T141, choose_columns
from onward.train.data.class_numbers import number_classes, renumber_classes
from onward.train.data.features import Feature, fit_feature
from onward.train.data.feed import numpy_dtype
from onward.train.data.frame import T142, Frame, RawColumn, list_columns
from onward.train.data.preparation import Preparation
from onward.train.data.source import ArrayColumn, ColumnSource

T140 = "T140"
T144 = "T144"


def open_table(
    path: Path,
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
    preparation: Preparation,
    part: str = "train",
) -> TableSource:
    """Return the table at `path` as columns named after the model's inputs and targets.

    Raises:
        DataError: columns are missing or cannot be used; all at once.
        MissingExtra: pandas or pyarrow is not installed.
    """
    frame = Frame.of(read_table(path), str(path))
    assert frame is not None
    return TableSource.of(frame, inputs, targets, preparation, may_fit=part == "train")


class TableSource(ColumnSource):
    """The rows of a table, prepared for a model. Its columns already have the names of the model."""

    renamed = True

    def __init__(
        self, frame: Frame, chosen: Mapping[str, Sequence[str]], specs: Sequence[TensorSpec], targets: set[str]
    ) -> None:
        self.frame, self.table = frame, chosen
        self._specs = [s for s in specs if s.name in chosen]
        self._targets = targets
        self.columns = {}
        self.positional = False
        self.preparation: Preparation | None = None
        """How the rows are prepared: given, or fitted on them; None as long as neither has happened."""
        self._wished = Preparation()
        self._classes: tuple[str, ...] = ()
        self._place = frame.place

    @classmethod
    def of(
        cls,
        frame: Frame,
        inputs: Sequence[TensorSpec],
        targets: Sequence[TensorSpec],
        preparation: Preparation,
        *,
        may_fit: bool,
    ) -> TableSource:
        """Return the table for a model. Without `may_fit`, rows that need features wait for those of the training."""
        chosen = choose_columns(frame.names, inputs, targets, preparation, frame.place)
        source = cls(frame, chosen, [*inputs, *targets], {s.name for s in targets})
        if may_fit:
            source.fit(preparation)
        else:
            source.apply(preparation)
        return source

    @property
    def size(self) -> int:
        return self.frame.size

    def specs(self) -> list[TensorSpec]:
        if not self.columns:
            raise DataError(self._unprepared())
        return super().specs()

    def _unprepared(self) -> list[Diagnostic]:
        """Return the columns that need what only training rows can say, each with the reason."""
        wish = self._wished.rescale
        problems = []
        for spec in self._specs:
            inputs = () if spec.name in self._targets or spec.name in self._wished.features else self.table[spec.name]
            for raw in (self.frame[name] for name in inputs):
                found = _why_unfit(spec, raw, self._wished) or ("" if wish == "none" else f"a wish: rescale is {wish}")
                if found:
                    problems.append(
                        Diagnostic(
                            T144,
                            f"column `{raw.name}` needs a preparation of the training, and the model stores none",
                            place=f"{self._place}, for input `{spec.name}`",
                            found=found,
                            needed=f"{spec.dtype} numbers in every row, or a model that was trained on such a table",
                        )
                    )
        hint = (
            "use the file or the checkpoint directory that the training of this table wrote: it stores the categories, "
            "the fills and the scales; or train first; or replace the text and the empty cells by numbers yourself"
        )
        return [*problems[:-1], dataclasses.replace(problems[-1], hint=hint)]

    def _groups(self, by: str | None) -> np.ndarray | None:
        """Return the class of each row, where the column of target `by` holds names of classes."""
        names = self.table.get(by or "", ())
        raw = self.frame[names[0]] if len(names) == 1 else None
        if raw is None or not _is_named(raw, ()) or raw.missing.any():
            return None
        return np.unique(raw.values.astype(str), return_inverse=True)[1]

    def split(self, fraction: float, seed: int = 0, by: str | None = None) -> tuple[TableSource, TableSource]:
        """Return (the rest, a random `fraction` of the rows), both as they came: fit the first, then apply to both."""
        assert self.preparation is not None
        parts = []
        for rows in self.split_rows(fraction, seed, by):
            part = TableSource(self.frame.take(rows), self.table, self._specs, self._targets)
            part._classes = self._classes
            parts.append(part)
        return parts[0], parts[1]

    def fit(self, preparation: Preparation) -> Preparation:
        """Prepare the rows, and return the preparation with the features that were found on them.

        Features that the preparation already has are applied: the weights of the model rely on them.
        """
        found = dict(preparation.features)
        problems: list[Diagnostic] = []
        failed: set[str] = set()
        for spec in self._specs:
            if spec.name not in self._targets and spec.name not in found:
                try:
                    features = _plan(spec, [self.frame[n] for n in self.table[spec.name]], preparation, self._place)
                except DataError as error:
                    problems += error.diagnostics
                    failed.add(spec.name)
                    continue
                if features:
                    found[spec.name] = features
        fitted = dataclasses.replace(preparation, features=found)
        self._prepare(fitted, problems, failed)
        return fitted

    def apply(self, preparation: Preparation) -> None:
        """Prepare the rows by the features of another table; leave them as they are if it has none and they need it."""
        needing = [s for s in self._specs if s.name not in self._targets and s.name not in preparation.features]
        raws = {s.name: [self.frame[n] for n in self.table[s.name]] for s in needing}
        waits = preparation.rescale != "none" or any(_needs(s, raws[s.name], preparation) for s in needing)
        self._wished = preparation
        if not waits or preparation.features:
            self._prepare(preparation, [], set())

    def _prepare(self, preparation: Preparation, problems: list[Diagnostic], skip: set[str]) -> None:
        columns: dict[str, ArrayColumn] = {}
        for spec in self._specs:
            if spec.name in skip:
                continue
            names = self.table[spec.name]
            features = () if spec.name in self._targets else preparation.features.get(spec.name, ())
            try:
                _check_width(spec, names, features, preparation, spec.name in self._targets, self._place)
                if features:
                    array = self._features(spec, features)
                else:
                    array = self._plain(spec, names, preparation)
            except DataError as error:
                problems += error.diagnostics
                continue
            columns[spec.name] = ArrayColumn(array)
        if problems:
            raise DataError(problems)
        self.columns = dict(columns)
        self.preparation = preparation

    def _features(self, spec: TensorSpec, features: Sequence[Feature]) -> np.ndarray:
        problems: list[Diagnostic] = []
        parts = []
        for feature in features:
            try:
                parts.append(feature.apply(self.frame[feature.column], self._place))
            except DataError as error:
                problems += error.diagnostics
        if problems:
            raise DataError(problems)
        array = np.concatenate(parts, axis=1)
        return _whole(array, spec, features[0].column, self._place) if numpy_dtype(spec.dtype).kind in "iu" else array

    def _plain(self, spec: TensorSpec, names: Sequence[str], preparation: Preparation) -> np.ndarray:
        problems: list[Diagnostic] = []
        parts = []
        for name in names:
            try:
                parts.append(self._numbers(self.frame[name], spec, preparation.classes))
            except DataError as error:
                problems += error.diagnostics
        if problems:
            raise DataError(problems)
        return parts[0] if len(parts) == 1 else np.stack(parts, axis=1)

    def _numbers(self, raw: RawColumn, spec: TensorSpec, known: Sequence[str]) -> np.ndarray:
        """Return the values of a column that needs no features; text in a target becomes class numbers.

        Raises:
            DataError: empty cells, fractions where the model takes whole numbers, or text in an input.
        """
        is_target = spec.name in self._targets
        if raw.missing.any() and (is_target or not spec.takes_nan):
            raise DataError(
                Diagnostic(
                    T142,
                    f"column `{raw.name}` has {int(raw.missing.sum())} empty cells",
                    place=f"{self._place}, first in row {int(np.argmax(raw.missing)) + 1}",
                    needed=f"a value in every row, for `{spec.name}`",
                    hint="drop the rows without a target"
                    if is_target
                    else "it had none in the training data: fill or drop them, or train with "
                    f"Preparation(missing={{'{raw.name}': 'median'}})",
                )
            )
        dtype = numpy_dtype(spec.dtype)
        if is_target and raw.name in self.frame.class_names:
            names = tuple(self.frame.class_names[raw.name])
            self._classes = tuple(known) or names
            raw = dataclasses.replace(raw, values=renumber_classes(raw.values, names, known, self._place))
            return _whole(raw.values, spec, raw.name, self._place) if dtype.kind in "iu" else raw.values
        text = [str(v) for v in raw.values] if is_target and _is_named(raw, known) else []
        if not raw.is_text and not text:
            return _whole(raw.values, spec, raw.name, self._place) if dtype.kind in "iu" else raw.values
        if is_target:
            known = known or self._classes
            numbers = number_classes(sorted(set(text)), known, f"{self._place}, column `{raw.name}`")
            self._classes = tuple(numbers)
            return np.array([numbers[t] for t in text], dtype=np.int64)
        if dtype.kind == "O":
            return raw.values
        raise DataError(
            Diagnostic(
                T142,
                f"column `{raw.name}` holds text",
                place=self._place,
                found=f"such as {raw.values[0]!r}",
                needed=f"numbers for `{spec.name}`, as in the training data",
                hint="encode it as numbers, or choose other columns with columns=",
            )
        )


def _is_named(raw: RawColumn, known: Sequence[str]) -> bool:
    """Return whether the cells of a target are names of classes: text, truth values, or the numbers in `known`."""
    if raw.is_text or raw.values.dtype.kind == "b":
        return raw.is_text or not known or set(known) == {"False", "True"}
    whole = raw.values.dtype.kind in "iu" and raw.values.ndim == 1
    return whole and bool(known) and all(name.removeprefix("-").isdecimal() for name in known)


def read_table(path: Path) -> Any:
    """Return the file as a pandas frame."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise require_extra("pandas", "data", "reading a table") from error
    name = path.name.lower()
    try:
        if name.endswith((".parquet", ".pq")):
            return pandas.read_parquet(path)
        frame = pandas.read_csv(path, sep="\t" if ".tsv" in name else ",", skipinitialspace=True)
    except ImportError as error:
        raise require_extra("pyarrow", "data", "reading Parquet") from error
    except (ValueError, OSError, EOFError) as error:  # pandas' and pyarrow's parse errors are ValueErrors
        if isinstance(error, OSError) and error.errno is not None:
            raise
        hint = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(Diagnostic(T140, f"`{path}` cannot be read as a table: {error}", hint=hint)) from error
    wrong = [mark for mark in (";", "\t", "|") if len(frame.columns) == 1 and mark in str(frame.columns[0])]
    if wrong:
        raise DataError(
            Diagnostic(
                T140,
                f"the columns of `{path}` are separated by {wrong[0]!r}",
                found=f"one column `{frame.columns[0]}`",
                needed="commas, or tabs in a .tsv",
                hint="save it with commas, and numbers with a point; spreadsheets call this CSV in English",
            )
        )
    return frame


def _needs(spec: TensorSpec, raws: Sequence[RawColumn], preparation: Preparation) -> bool:
    """Return whether the columns of an input cannot be used as they are."""
    return any(_why_unfit(spec, raw, preparation) for raw in raws)


def _why_unfit(spec: TensorSpec, raw: RawColumn, preparation: Preparation) -> str:
    """Return why a column of an input cannot be used as it is; nothing if it can."""
    if raw.is_text and numpy_dtype(spec.dtype).kind != "O":
        return f"text, such as {raw.values[int(np.argmin(raw.missing))]!r}"
    if raw.missing.any() and not spec.takes_nan:
        return f"{counted(int(raw.missing.sum()), 'empty cell')}, first in row {int(np.argmax(raw.missing)) + 1}"
    return "numbers that are categories, as categorical= says" if raw.name in preparation.categorical else ""


def _plan(
    spec: TensorSpec, raws: Sequence[RawColumn], preparation: Preparation, place: str
) -> tuple[Feature, ...] | None:
    """Return the features of an input, fitted on its columns; None if they can be used as they are."""
    dtype = numpy_dtype(spec.dtype)
    whole, text = dtype.kind in "iu", dtype.kind == "O"
    wishes = preparation.wishes
    asked = (wishes.rescale != "none" or wishes.missing != "auto") and not text
    if (len(raws) == 1 and raws[0].values.ndim > 1) or not (asked or _needs(spec, raws, preparation)):
        return None
    problems: list[Diagnostic] = []
    found: list[Feature] = []
    for raw in raws:
        try:
            keeps_nan = spec.takes_nan and not whole
            found.append(fit_feature(raw, wishes, place, whole=whole, text=text, keeps_nan=keeps_nan))
        except DataError as error:
            problems += error.diagnostics
    if problems:
        raise DataError(problems)
    if all(f.is_plain for f in found):
        return None
    if wishes.categories == "auto" and not text:
        found = _encodings(found, _width(spec), whole)
    return tuple(found)


def _encodings(features: Sequence[Feature], width: int | None, whole: bool) -> list[Feature]:
    """Return the features with the encoding of categories that gives an input of this width."""
    codes = [dataclasses.replace(f, encoding="codes") if f.kind == "category" else f for f in features]
    rows = sum(f.width for f in features)
    if whole or (width is not None and rows != width and sum(f.width for f in codes) == width):
        return codes
    return list(features)


def _width(spec: TensorSpec) -> int | None:
    """Return how many numbers a row of an input or target holds; None if the model leaves it open."""
    width = spec.shape[1] if len(spec.shape) == 2 else 1 if len(spec.shape) == 1 else None
    return width if isinstance(width, int) else None


def _check_width(
    spec: TensorSpec,
    names: Sequence[str],
    features: Sequence[Feature],
    preparation: Preparation,
    is_target: bool,
    place: str,
) -> None:
    width = _width(spec)
    have = sum(f.width for f in features) if features else len(names)
    if width is None or have == width or (len(names) == 1 and not features) or (preparation.one_hot and is_target):
        return
    if features:
        codes = sum(dataclasses.replace(f, encoding="codes").width for f in features)
        raise DataError(
            Diagnostic(
                T141,
                f"the columns for `{spec.name}` give {have} numbers, and it takes {width}",
                place=place,
                found="; ".join(f"{f.column}: {f.width}" for f in features),
                needed=f"{width} numbers",
                hint=f"with a code for each category they give {codes}: categories='codes'; or choose columns with "
                "features=[…]",
            )
        )
    raise DataError(
        Diagnostic(
            T141,
            f"{len(names)} columns for `{spec.name}`, which takes {width}",
            place=place,
            found=list_columns(names),
            needed=f"{width} columns",
            hint=f"name them: columns={{'{spec.name}': 'a,b,c'}}"
            + ("; class numbers become rows with one_hot=True" if is_target else ", or features=[…]"),
        )
    )


def _whole(values: np.ndarray, spec: TensorSpec, name: str, place: str) -> np.ndarray:
    """Return floats that are whole numbers as integers; other types as they are."""
    if values.dtype.kind != "f":
        return values
    whole = np.rint(values)
    if not np.array_equal(whole, values):
        raise DataError(
            Diagnostic(
                T142,
                f"column `{name}` has fractions",
                place=place,
                found=f"such as {values[whole != values].ravel()[0]}",
                needed=f"whole numbers for `{spec.name}` ({spec.dtype})",
            )
        )
    return np.asarray(whole.astype(np.int64))
