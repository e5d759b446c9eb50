"""Write predictions as CSV, JSON, JSON lines or Parquet, batch by batch; the file appears whole, at the end."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from onward.arguments import check_name, check_path
from onward.errors import A101, ArgumentError, Diagnostic, ModelError, require_extra
from onward.model.files import M111, why_not_writable
from onward.storage import atomic

if TYPE_CHECKING:
    from onward.train.predictions import Predictions, Row

FORMATS = ("csv", "tsv", "json", "jsonl", "parquet")
_OTHER_ENDINGS = {"ndjson": "jsonl", "pq": "parquet"}


def format_of(path: Path | None, given: str | None = None) -> str:
    """Return the format: the one that was given, or the one that the ending of the path names.

    >>> format_of(Path("p.jsonl")), format_of(None)
    ('jsonl', 'csv')
    """
    if given is not None:
        check_name("format of predictions", given, FORMATS, place="format=")
        return given
    if path is None:
        return "csv"
    ending = path.suffix.lower().removeprefix(".")
    ending = _OTHER_ENDINGS.get(ending, ending)
    if ending not in FORMATS:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the ending of `{path}` does not say how to write predictions",
                place="path=",
                needed=", ".join(f".{f}" for f in FORMATS),
                hint="or name the format: format='csv'",
            )
        )
    return ending


def write(predictions: Predictions, path: Path, format: str | None = None) -> int:
    """Write all predictions to `path` and return how many there are.

    Raises:
        ArgumentError: no such format.
        ModelError: the file cannot be written; asked before the first prediction.
    """
    check_path("path", path)
    chosen = format_of(path, format)
    problem = why_not_writable(path)
    if problem is not None:
        raise ModelError(problem)
    counter = _Counter()
    make: Callable[[Predictions, _Counter], Iterator[bytes]] = _parquet if chosen == "parquet" else _text(chosen)
    try:
        atomic.write_atomic(path, make(predictions, counter))
    except OSError as error:
        raise ModelError(
            Diagnostic(M111, f"cannot write `{path}`: {error.strerror or error}", hint="no half-written file was left")
        ) from error
    return counter.rows


def print_text(predictions: Predictions, file: IO[str], format: str) -> int:
    """Print all predictions, each batch as soon as it is done, and return how many there are."""
    counter = _Counter()
    for chunk in _text(format)(predictions, counter):
        file.write(chunk.decode("utf-8"))
        file.flush()
    return counter.rows


class _Counter:
    rows = 0


def _text(format: str) -> Callable[[Predictions, _Counter], Iterator[bytes]]:
    if format in ("csv", "tsv"):
        return lambda predictions, counter: _csv(predictions, counter, "\t" if format == "tsv" else ",")
    return lambda predictions, counter: _json(predictions, counter, lines=format == "jsonl")


def _csv(predictions: Predictions, counter: _Counter, delimiter: str) -> Iterator[bytes]:
    columns: list[str] = []
    for rows in predictions.flat_batches():
        buffer = io.StringIO()
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
        if not columns and rows:
            columns = list(rows[0])
            writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row.get(name)) for name in columns])
        counter.rows += len(rows)
        yield buffer.getvalue().encode("utf-8")


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value


def _json(predictions: Predictions, counter: _Counter, *, lines: bool) -> Iterator[bytes]:
    yield b"" if lines else b"[\n"
    for rows in predictions.batches():
        texts = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
        joint = "\n" if lines else ",\n"
        text = joint.join(texts)
        yield ((joint if counter.rows and not lines else "") + text + ("\n" if lines else "")).encode("utf-8")
        counter.rows += len(rows)
    yield b"" if lines else b"\n]\n"


def _parquet(predictions: Predictions, counter: _Counter) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file; it grows in a temporary file, because its index comes last."""
    try:
        arrow, parquet = (importlib.import_module(f"pyarrow{name}") for name in ("", ".parquet"))
    except ImportError as error:
        raise require_extra("pyarrow", "data", "writing Parquet") from error
    batches = (rows for rows in predictions.flat_batches() if rows)
    with tempfile.TemporaryFile() as file:
        first = next(batches, None)
        if first is not None:
            table = arrow.Table.from_pylist(_seen(first, counter))
            schema = arrow.schema([_wide(arrow, field) for field in table.schema])
            with parquet.ParquetWriter(file, schema) as writer:
                for rows in itertools.chain([first], (_seen(rows, counter) for rows in batches)):
                    writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
        file.seek(0)
        while chunk := file.read(atomic.CHUNK):
            yield chunk


def _seen(rows: list[Row], counter: _Counter) -> list[Row]:
    counter.rows += len(rows)
    return rows


def _wide(arrow: Any, field: Any) -> Any:
    """Return the field so that later batches fit: a column of nothing but None holds numbers."""
    return arrow.field(field.name, arrow.float64()) if arrow.types.is_null(field.type) else field
