"""Open a path as training data: .npy, .npz, safetensors, IDX, CSV, Parquet, image folders."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onward.arguments import did_you_mean, near_files
from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic
from onward.train.data import idx
from onward.train.data.preparation import Preparation
from onward.train.data.source import ArrayColumn, ColumnSource, DataSource

T130 = "T130"
T131 = "T131"

_PARTS = {"train": ("train",), "evaluate": ("test", "val", "valid", "validation", "eval")}
TABLES = (".csv", ".tsv", ".parquet", ".pq", ".csv.gz", ".tsv.gz")


def open_data(
    path: str | Path,
    inputs: Sequence[TensorSpec] = (),
    targets: Sequence[TensorSpec] = (),
    *,
    part: str = "train",
    preparation: Preparation | None = None,
) -> DataSource:
    """Return the data at `path`.

    `inputs` and `targets` of the model decide how to read a table or images. A folder with the classic MNIST files, or
    with subfolders `train` and `test`, gives the part that `part` names ("train" or "evaluate").

    Raises:
        DataError: it cannot be opened or understood.
        MissingExtra: the format needs an optional package.
    """
    path = Path(path)
    preparation = preparation or Preparation()
    if not path.exists():
        near = did_you_mean(str(path.parent / name) for name in near_files(path))
        raise DataError(Diagnostic(T130, f"there is no `{path}`", needed="a file or a folder with data", hint=near))
    try:
        if path.is_dir():
            return _open_folder(path, inputs, targets, part, preparation)
        return _open_file(path, inputs, targets, preparation, part)
    except OSError as error:
        raise DataError(Diagnostic(T130, f"`{path}` cannot be read: {error.strerror or error}")) from error


def _open_file(
    path: Path, inputs: Sequence[TensorSpec], targets: Sequence[TensorSpec], preparation: Preparation, part: str
) -> DataSource:
    name = path.name.lower()
    if name.endswith(".npy"):
        return _columns({path.stem: _read_npy(path)}, path, positional=True)
    if name.endswith(".npz"):
        return _columns(_read_npz(path), path)
    if name.endswith(".safetensors"):
        return _columns(_read_safetensors(path), path)
    if name.endswith(TABLES):
        from onward.train.data.table import open_table

        return open_table(path, inputs, targets, preparation, part)
    if idx.is_idx(path):
        return _columns({path.name: idx.read_idx(path)}, path, positional=True)
    raise DataError(
        Diagnostic(
            T130,
            f"`{path}` is not of a known kind",
            needed=".npy, .npz, .safetensors, .csv, .tsv, .parquet or an IDX file",
        )
    )


def _open_folder(
    path: Path, inputs: Sequence[TensorSpec], targets: Sequence[TensorSpec], part: str, preparation: Preparation
) -> DataSource:
    pair = idx.find_pair(path, part)
    if pair is not None:
        images, labels = pair
        columns = {"images": idx.read_idx(images), "labels": idx.read_idx(labels)}
        source = _columns(columns, path, positional=True)
        source.nameless = True
        return source
    arrays = sorted(path.glob("*.npy"))
    if arrays:
        return _columns({p.stem: _read_npy(p) for p in arrays}, path)
    for name in _PARTS[part]:
        if (path / name).is_dir():
            return _open_folder(path / name, inputs, targets, part, preparation)
        for suffix in (".npz", ".safetensors", *TABLES):
            if (path / f"{name}{suffix}").is_file():
                return _open_file(path / f"{name}{suffix}", inputs, targets, preparation, part)
    from onward.train.data.images import find_images, open_images

    images_by_class = find_images(path)
    if images_by_class:
        skip = preparation.damaged == "skip"
        return open_images(path, images_by_class, inputs, preparation.classes, skip_damaged=skip)
    raise DataError(
        Diagnostic(
            T130,
            f"the folder `{path}` holds nothing that can be trained on",
            found=", ".join(sorted(p.name for p in path.iterdir())[:8]) or "an empty folder",
            needed="the MNIST files, .npy files, one subfolder of images per class, or train/ and test/",
        )
    )


def open_named(paths: dict[str, Path]) -> DataSource:
    """Return columns that each come from a file of their own: `--data images=a.npy --data labels=b.npy`."""
    columns = {}
    for name, path in paths.items():
        source = open_data(path)
        if not isinstance(source, ColumnSource) or len(source.columns) != 1:
            raise DataError(
                Diagnostic(T130, f"`{path}` holds several columns", needed=f"one array for `{name}`, as .npy or IDX")
            )
        columns[name] = next(iter(source.columns.values()))
    return ColumnSource(columns, place=", ".join(str(p) for p in paths.values()))


def _columns(arrays: dict[str, np.ndarray], path: Path, *, positional: bool = False) -> ColumnSource:
    if len(arrays) == 1 and (only := next(iter(arrays.values()))).dtype.names:
        arrays = {name: only[name] for name in only.dtype.names}
        positional = False
    return ColumnSource({n: ArrayColumn(a) for n, a in arrays.items()}, positional=positional, place=str(path))


def _damaged(path: Path, error: Exception) -> DataError:
    reason = str(error)
    if "pickle" in reason:  # numpy's message explains how to unpickle, which is not safe
        reason = "it holds Python objects, or something other than arrays of numbers"
    return DataError(Diagnostic(T131, f"`{path}` is damaged or not what its name says: {reason}"))


def _read_npy(path: Path) -> np.ndarray:
    """Return the array memory-mapped; one with Python objects is refused, since reading it would run code."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _damaged(path, error) from error
    return array


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(path, error) from error


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        loaded: dict[str, np.ndarray] = load_file(path)
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error
    return loaded
