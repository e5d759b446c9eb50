"""What a plain file is to learn from the data: which column is the target, its values, and what they mean."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.cli.options import open_data
from onward.errors import A101, ArgumentError, DataError, Diagnostic

if TYPE_CHECKING:
    import numpy as np

    from onward.cli.train import TrainOptions
    from onward.train import Preparation, Trainer
    from onward.train.data import DataSource

LABELS = "labels"
_USUAL = ("labels", "label", "target", "targets", "class", "y")


def open_targets(options: TrainOptions, trainer: Trainer) -> tuple[dict[str, str], DataSource]:
    """Return (columns for --column, the data with its target): for images it is the folder, for a table a column."""
    from onward.compiler.program import TensorSpec
    from onward.train.data.files import TABLES

    preparation = options.preparation(trainer.preparation)
    columns = {name: c if isinstance(c, str) else ",".join(c) for name, c in preparation.columns.items()}
    path = options.data[0]
    inputs = [s.name for s in trainer.program.inputs]
    features = options.named_columns("features")
    if features is not None:
        by_input = features if isinstance(features, dict) else {inputs[0]: features}
        columns |= {name: ",".join(chosen) for name, chosen in by_input.items()}
    if path.lower().endswith(TABLES) and Path(path).is_file():
        from onward.train.data.table import read_table

        frame = read_table(Path(path))
        named = _target_column(options, columns, [str(c) for c in frame.columns], fallback=True)
        columns[LABELS] = named
        is_float = frame[named].dtype.kind == "f"
        spec = TensorSpec(LABELS, "float32" if is_float else "int64", (None, 1) if is_float else (None,))
        prepared = dataclasses.replace(preparation, columns=columns)
        program = dataclasses.replace(trainer.program, targets=(spec,))
        return columns, _open_with(options, prepared, program.inputs, program.targets)
    source = open_data(options.data, trainer, preparation, "train", None)
    names = [c.name for c in source.specs()]
    if source.positional:
        return columns, source
    free = [n for n in names if n not in inputs and n not in columns.values()]
    named = _target_column(options, columns, free, fallback=len(free) == 1)
    if named != LABELS:
        columns[LABELS] = named
    left = [n for n in free if n != named]
    if len(inputs) == 1 and inputs[0] not in names and inputs[0] not in columns and len(left) == 1:
        columns[inputs[0]] = left[0]
    return columns, source


def _open_with(options: TrainOptions, preparation: Preparation, inputs: Any, targets: Any) -> DataSource:
    from onward.train.data import files

    return files.open_data(options.data[0], inputs, targets, part="train", preparation=preparation)


def _target_column(options: TrainOptions, columns: dict[str, str], names: list[str], *, fallback: bool) -> str:
    """Return the column that is the target: the one that was named, or a usual name, or the last one of a table."""
    from onward.arguments import check_name

    asked = options.named_columns("target")
    asked = next(iter(asked.values())) if isinstance(asked, dict) else asked
    named = asked[0] if asked else columns.get(LABELS)
    if named is not None:
        check_name("column", named, names, place="target=")
        return named
    usual = next((n for n in names if n.lower() in _USUAL), None)
    if usual is None and (not fallback or not names):
        raise ArgumentError(
            Diagnostic(
                A101,
                "nothing says which column is the target",
                found=", ".join(f"`{n}`" for n in names) or "no column beside the inputs",
                needed="--target COLUMN",
            )
        )
    return usual or names[-1]


def require_numbers(targets: np.ndarray, column: str, source: DataSource) -> None:
    """Raise if arrays hold names of classes, which only a table or folders turn into numbers."""
    if targets.dtype.kind not in "OUS" or source.classes:
        return
    from onward.train.data.feed import T112

    shown = ", ".join(f"`{name}`" for name in list(dict.fromkeys(targets.ravel().tolist()))[:5])
    raise DataError(
        Diagnostic(
            T112,
            f"`{column}` holds text, and arrays hold the numbers of classes",
            found=shown,
            needed="whole numbers from 0",
            hint="in Python: names, numbers = numpy.unique(labels, return_inverse=True); a table may hold names",
        )
    )


def targets_of(source: DataSource, trainer: Trainer, columns: dict[str, str]) -> np.ndarray:
    """Return the targets of the data, of all samples where they are in memory."""
    import numpy as np

    from onward.train.data.source import BatchRequest, ColumnSource

    names = [c.name for c in source.specs()]
    wanted = columns.get(LABELS, LABELS)
    name = wanted if wanted in names else LABELS if LABELS in names else names[-1]
    if len(names) <= len(trainer.program.inputs):
        raise ArgumentError(
            Diagnostic(
                A101,
                "the data has no targets to learn from",
                found=", ".join(names),
                needed="one folder of images per class, a column, or an array beside the inputs",
            )
        )
    if isinstance(source, ColumnSource):
        return np.asarray(source.columns[name].take(slice(None)))
    return np.asarray(next(iter(source.batches(BatchRequest(256))))[name])


def meaning_of(targets: np.ndarray, source: DataSource) -> tuple[list[str], list[str], str]:
    """Return (names of the classes, else the whole numbers that stand for them, "classes" or "numbers")."""
    import numpy as np

    if source.classes:
        return list(source.classes), [], "classes"
    if targets.dtype.kind in "iub" and targets.size and (targets.ndim == 1 or targets.shape[1:] == (1,)):
        return [], [str(int(v)) for v in np.unique(targets)], "classes"
    return [], [], "numbers"
