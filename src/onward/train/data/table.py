"""CSV and Parquet: columns of a table to the inputs and targets of a model, by name.

For each input or target `x` of the model, in this order:

1. the columns named in `columns={"x": "a,b,c"}` (on the command line `--column x=a,b,c`);
2. the column `x`, or the columns `x_0, x_1, …` (also `x.0` and `x[0]`);
3. for the last one left: all columns that nothing else has taken, in the order of the file.

Text in a target column becomes class numbers, the names sorted; text elsewhere and empty cells are errors.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic, require_extra
from onward.train.data.matching import Preparation, number_classes, numpy_dtype
from onward.train.data.source import T106, ArrayColumn, ColumnSource

T140 = "T140"
T141 = "T141"
T142 = "T142"


def open_table(
    path: Path, inputs: Sequence[TensorSpec], targets: Sequence[TensorSpec], preparation: Preparation
) -> ColumnSource:
    """Return the table at `path` as columns named after the model's inputs and targets.

    Raises:
        DataError: columns are missing, hold text or are empty; all at once.
        MissingExtra: pandas or pyarrow is not installed.
    """
    frame = _read(path)
    if not len(frame):
        raise DataError(
            Diagnostic(
                T106,
                "the data holds no samples",
                place=str(path),
                found=f"{_list([str(c) for c in frame.columns])} and no rows",
                needed="at least one sample",
            )
        )
    chosen = _choose([str(c) for c in frame.columns], inputs, targets, preparation, path)
    columns: dict[str, ArrayColumn] = {}
    classes: list[str] = []
    problems: list[Diagnostic] = []
    target_names = {s.name for s in targets}
    for spec in (*inputs, *targets):
        if spec.name not in chosen:
            continue
        parts = []
        for name in chosen[spec.name]:
            try:
                values, names = _numbers(frame[name], name, spec, spec.name in target_names, path, preparation.classes)
            except DataError as error:
                problems += error.diagnostics
                continue
            classes = names or classes
            parts.append(values)
        if parts and not problems:
            single = len(chosen[spec.name]) == 1
            columns[spec.name] = ArrayColumn(parts[0] if single else np.stack(parts, axis=1))
    if problems:
        raise DataError(problems)
    # The columns already have the model's names, so `columns=` must not be applied again.
    source = _Table(columns, classes=classes, place=str(path))
    source.table = chosen
    return source


class _Table(ColumnSource):
    """Columns that already have the names of the model."""

    renamed = True


def _read(path: Path) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise require_extra("pandas", "data", "reading a table") from error
    name = path.name.lower()
    try:
        if name.endswith((".parquet", ".pq")):
            return pandas.read_parquet(path)
        return pandas.read_csv(path, sep="\t" if ".tsv" in name else ",", skipinitialspace=True)
    except ImportError as error:
        raise require_extra("pyarrow", "data", "reading Parquet") from error
    except (ValueError, OSError, EOFError) as error:  # pandas' and pyarrow's parse errors are ValueErrors
        if isinstance(error, OSError) and error.errno is not None:
            raise
        hint = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(Diagnostic(T140, f"`{path}` cannot be read as a table: {error}", hint=hint)) from error


def _choose(
    columns: list[str],
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec],
    preparation: Preparation,
    path: Path,
) -> dict[str, list[str]]:
    """Return model name -> columns of the table."""
    wanted = [*inputs, *targets]
    chosen: dict[str, list[str]] = {}
    problems: list[Diagnostic] = []
    for spec in wanted:
        asked = preparation.columns.get(spec.name)
        if asked is not None:
            names = [n.strip() for n in asked.split(",")]
            problems += _missing(spec, names, columns, path)
            chosen[spec.name] = names
        elif spec.name in columns:
            chosen[spec.name] = [spec.name]
        elif numbered := _numbered(columns, spec.name):
            chosen[spec.name] = numbered
    left = [spec for spec in wanted if spec.name not in chosen]
    for spec in [s for s in left if s.name in preparation.table]:
        chosen[spec.name] = list(preparation.table[spec.name])
        problems += _missing(
            spec,
            chosen[spec.name],
            columns,
            path,
            needed=f"the columns that the model was trained with: {_list(chosen[spec.name])}",
            hint=f"if others mean the same, name them: --column {spec.name}=a,b,c",
        )
        left.remove(spec)
    if len(left) == 1:
        taken = {name for names in chosen.values() for name in names}
        rest = [c for c in columns if c not in taken]
        if rest:
            chosen[left[0].name] = rest
            left = []
    problems += [
        Diagnostic(
            T141,
            f"the table has no column for `{spec.name}`",
            place=str(path),
            found=_list(columns),
            needed=f"`{spec.name}` {spec.dtype} {_sizes(spec)}",
            hint=f"name it: columns={{'{spec.name}': '{_example(spec, columns)}'}}, or --column "
            f"{spec.name}={_example(spec, columns)}"
            + ("; the last one left takes all columns that remain" if len(left) > 1 else ""),
        )
        for spec in left
    ]
    for spec in wanted:
        width = spec.shape[1] if len(spec.shape) == 2 else 1 if len(spec.shape) == 1 else None
        have = chosen.get(spec.name)
        coded = preparation.one_hot and spec in targets
        if have and isinstance(width, int) and len(have) != width and not coded and not problems:
            problems.append(
                Diagnostic(
                    T141,
                    f"{len(have)} columns for `{spec.name}`, which takes {width}",
                    place=str(path),
                    found=_list(have),
                    needed=f"{width} columns",
                    hint=f"name them: --column {spec.name}=a,b,c"
                    + ("; class numbers become rows with --one-hot" if spec in targets else ""),
                )
            )
    if problems:
        raise DataError(problems)
    return chosen


def _missing(
    spec: TensorSpec, names: Sequence[str], columns: Sequence[str], path: Path, needed: str = "", hint: str = ""
) -> list[Diagnostic]:
    missing = [f"`{n}`" for n in names if n not in columns]
    message = f"no column {', '.join(missing)} for `{spec.name}`"
    return (
        [Diagnostic(T141, message, place=str(path), found=_list(columns), needed=needed, hint=hint)] if missing else []
    )


def _example(spec: TensorSpec, columns: Sequence[str]) -> str:
    """Return an example of column names: for a single number the last column, which is often the label."""
    single = len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[1] == 1)
    return columns[-1] if single and columns else "a,b,c"


def _numbered(columns: Sequence[str], name: str) -> list[str]:
    found = []
    for column in columns:
        match = re.fullmatch(re.escape(name) + r"[_.\[](\d+)\]?", column)
        if match:
            found.append((int(match[1]), column))
    return [column for _, column in sorted(found)]


def _numbers(
    series: Any, name: str, spec: TensorSpec, is_target: bool, path: Path, known: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Return (values, class names if text was encoded).

    Raises:
        DataError: empty cells, fractions where the model takes whole numbers, or text in an input.
    """
    empty = series.isna().to_numpy()
    if empty.any():
        raise DataError(
            Diagnostic(
                T142,
                f"column `{name}` has {int(empty.sum())} empty cells",
                place=f"{path}, first in row {int(np.argmax(empty)) + 1}",
                needed=f"a value in every row, for `{spec.name}`",
            )
        )
    values = series.to_numpy()
    if values.dtype.kind in "fiub":
        if values.dtype.kind == "f" and numpy_dtype(spec.dtype).kind in "iu":
            whole = np.rint(values)
            if not np.array_equal(whole, values):
                raise DataError(
                    Diagnostic(
                        T142,
                        f"column `{name}` has fractions",
                        place=str(path),
                        found=f"such as {values[whole != values][0]}",
                        needed=f"whole numbers for `{spec.name}` ({spec.dtype})",
                    )
                )
            values = whole.astype(np.int64)
        return values, []
    text = [str(v) for v in values]
    if is_target:
        numbers = number_classes(sorted(set(text)), known, f"{path}, column `{name}`")
        return np.array([numbers[t] for t in text], dtype=np.int64), list(numbers)
    raise DataError(
        Diagnostic(
            T142,
            f"column `{name}` holds text",
            place=str(path),
            found=f"such as {text[0]!r}",
            needed=f"numbers for `{spec.name}`",
            hint="encode it as numbers, or choose other columns with --column",
        )
    )


def _list(columns: Sequence[str]) -> str:
    shown = ", ".join(f"`{c}`" for c in columns[:12])
    return f"{len(columns)} columns: {shown}{', …' if len(columns) > 12 else ''}"


def _sizes(spec: TensorSpec) -> str:
    return "(" + ", ".join("N" if i == 0 else str(d) for i, d in enumerate(spec.shape)) + ")"
