"""Data to predict on: it needs no targets, and every sample has a name, so that its prediction can be found again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.arguments import check_names
from onward.compiler.program import TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.reading.pictures import pillow
from onward.train.data import files
from onward.train.data.images import SUFFIXES, ImageColumn, images_under, without_damaged
from onward.train.data.preparation import Preparation
from onward.train.data.source import ColumnSource, DataSource


@dataclasses.dataclass(frozen=True)
class Named:
    """A source and the columns that name its samples: `file` for images, `row` for everything else."""

    source: DataSource
    names: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)

    def slice(self, first: int, count: int) -> Iterator[dict[str, Any]]:
        """Yield the names of `count` samples, beginning with number `first`."""
        for i in range(first, first + count):
            yield {name: values[i] for name, values in self.names.items()} if self.names else {"row": i}


def open_unlabelled(
    path: str | Path,
    inputs: Sequence[TensorSpec],
    targets: Sequence[TensorSpec] = (),
    preparation: Preparation | None = None,
    keep: Sequence[str] = (),
) -> Named:
    """Return the data at `path` for a prediction: an image, a folder of images at any depth, or what training reads.

    `keep` names columns of a table that the predictions repeat. Targets that the data has do no harm.

    Raises:
        DataError: it cannot be opened or understood.
        ArgumentError: `keep` names columns that are not there, or the data is no table.
    """
    path = Path(path)
    images = _images(path)
    if keep and (images or not path.name.lower().endswith(files.TABLES)):
        raise ArgumentError(
            Diagnostic(A101, "only a table has columns to keep", place="keep=", found=str(path), needed="a table")
        )
    if images:
        pillow()
        base = path if path.is_dir() else path.parent
        if preparation is not None and preparation.damaged == "skip":
            images = without_damaged(base, images)
        column = ImageColumn(images, inputs[0].shape if inputs else (None, 3, None, None))
        source = ColumnSource({"images": column}, positional=True, place=str(path))
        return Named(source, {"file": [p.relative_to(base).as_posix() for p in images]})
    return Named(_open(path, inputs, targets, preparation or Preparation()), _kept(path, keep))


def _images(path: Path) -> list[Path]:
    """Return the image, or every image of a folder, sorted; empty where the data is of another kind."""
    if path.is_file():
        return [path] if path.suffix.lower() in SUFFIXES else []
    if not path.is_dir() or any(path.glob("*.npy")):
        return []
    return images_under(path)


def _open(
    path: Path, inputs: Sequence[TensorSpec], targets: Sequence[TensorSpec], preparation: Preparation
) -> DataSource:
    """Open data with or without targets: in a table, the input that is left takes every column that remains."""
    try:
        return files.open_data(path, inputs, (), part="evaluate", preparation=preparation)
    except DataError as error:
        try:
            return files.open_data(path, inputs, targets, part="evaluate", preparation=preparation)
        except DataError:
            raise error from None


def _kept(path: Path, keep: Sequence[str]) -> dict[str, Sequence[Any]]:
    if not keep:
        return {}
    from onward.train.data.table import read_table

    frame = read_table(path)
    check_names("column", keep, [str(c) for c in frame.columns], place="keep=")
    return {"row": range(len(frame)), **{name: frame[name].tolist() for name in keep}}
