"""Predictions with names: the class, its probability, the best few; as rows, as a frame, or in a file."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward import notebook
from onward.arguments import as_whole, check_names
from onward.compiler.program import Program
from onward.errors import ArgumentError, DataError, Diagnostic, require_extra
from onward.graph.closing import closing
from onward.model.task import KINDS, Task
from onward.model.training_model import FLOAT_TYPES
from onward.train import evaluation
from onward.train.data import Data, as_source
from onward.train.data.images import check_images
from onward.train.data.matching import Matching, fixed_batch, match
from onward.train.data.preparation import Preparation
from onward.train.data.unlabelled import Named, open_unlabelled

if TYPE_CHECKING:
    from onward.train.trainer import Trainer

T160 = "T160"
T161 = "T161"

Row = dict[str, Any]
_SIGMOIDS = ("Sigmoid", "HardSigmoid", "LogSigmoid")


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What a caller wants to see of each output; None and 0 leave it to the model.

    `kind` is one of `onward.model.task.KINDS`, `top` a number of classes, `classes` their names, `probabilities`
    whether the probability of every class is wanted.
    """

    kind: str | None = None
    top: int = 0
    classes: tuple[str, ...] = ()
    probabilities: bool = False


def make_predictions(
    trainer: Trainer,
    x: Data | Named,
    preparation: Preparation,
    wishes: Wishes,
    outputs: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    batch_size: int | None = None,
) -> Predictions:
    """Return the predictions of a trainer's model; nothing is computed before they are read.

    Raises:
        ArgumentError: no such output, kind or column; all at once.
        DataError: the data does not fit the inputs of the model.
    """
    program = trainer.program
    names = evaluation.output_names(program)
    problems: list[Diagnostic] = []
    for place, given, valid in (("outputs=", outputs or (), names), ("kind=", _some(wishes.kind), KINDS)):
        try:
            check_names("output" if place == "outputs=" else "kind of output", given, valid, place=place)
        except ArgumentError as error:
            problems += error.diagnostics
    as_whole("top", wishes.top, 0, problems)
    size = 256 if batch_size is None else as_whole("batch_size", batch_size, 1, problems)
    if problems:
        raise ArgumentError(problems)
    known = not wishes.classes
    if known:
        wishes = dataclasses.replace(wishes, classes=preparation.classes)
    if isinstance(x, (str, Path)):
        data = open_unlabelled(x, program.inputs, program.targets, preparation, keep)
    else:
        data = x if isinstance(x, Named) else Named(as_source(x, None, program.inputs, (), preparation))
    check_images(data.source)
    kept = {k: v for k, v in preparation.columns.items() if k in {s.name for s in program.inputs}}
    matching = match(data.source, program.inputs, (), dataclasses.replace(preparation, columns=kept), lenient=True)
    size = fixed_batch(program.inputs) or size
    return Predictions(trainer, data, matching, size, list(outputs or names), wishes, known_classes=known)


def _some(value: str | None) -> list[str]:
    return [] if value is None else [value]


class Predictions:
    """The predictions of a model over some data, computed batch by batch while they are read.

    Iterate over the rows, or use `to_frame()` or `save(path)`. Made by `Trainer.predictions`.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: Named,
        matching: Matching,
        batch_size: int,
        outputs: Sequence[str],
        wishes: Wishes,
        *,
        known_classes: bool = False,
    ) -> None:
        self._trainer, self._data, self._matching = trainer, data, matching
        self._known_classes = known_classes  # the model names its classes, not the caller
        self._batch_size, self._outputs, self._wishes = batch_size, list(outputs), wishes
        self._readers: list[_Reader] = []
        self.notes: list[str] = []
        """What the model did not say, and how that was taken; known after the first batch."""

    def __iter__(self) -> Iterator[Row]:
        """Yield one row per sample: its name, then what the model says about it, as plain values."""
        return (dict(row) for rows in self.batches() for row in rows)

    def batches(self) -> Iterator[list[Row]]:
        """Yield the rows of one batch at a time.

        Raises:
            DataError: an output does not have one entry per sample, or not the shape that was asked for; before the
                first row.
        """
        first = 0
        session = self._trainer.session
        missing = 0
        for count, outputs in evaluation.predict_batches(session, self._data.source, self._matching, self._batch_size):
            arrays = {name: np.asarray(outputs[name]) for name in self._outputs}
            if not self._readers:
                self._readers = self._make_readers(arrays, count)
            read = [(reader, reader.read(arrays[reader.name], count)) for reader in self._readers]
            rows = []
            for i, row in enumerate(self._data.slice(first, count)):
                for reader, entries in read:
                    entry = entries[i]
                    missing += entry.get("probability", 0) is None
                    row |= entry if len(read) == 1 or set(entry) == {reader.name} else {reader.name: entry}
                rows.append(row)
            first += count
            yield rows
        if missing:
            warnings.warn(f"the model gave NaN for {missing} of {first} samples; their class is empty", stacklevel=2)

    def _make_readers(self, arrays: dict[str, np.ndarray], count: int) -> list[_Reader]:
        program = self._trainer.program
        task = Task.of_metadata(program.infer_graph.model.metadata_props)
        about = _told(program, self._outputs, task)
        readers, problems = [], []
        for name, array in arrays.items():
            own = task if name in about else None
            ending = _ending(program, name)
            wishes = self._wishes
            if about and own is None and self._known_classes:
                wishes = dataclasses.replace(wishes, classes=())  # the names are those of another output
            kind = wishes.kind or _kind_of(array, own, wishes, ending)
            reader = _Reader(name, kind, own or Task(kind, -1), wishes, ending)
            problem = reader.problem(array, count) or self._no_scores(name, array, own)
            readers.append(reader)
            if problem is not None:
                problems.append(problem)
            elif kind == "values" and reader.flat and self._wishes.kind is None and task is None:
                self.notes.append(
                    f"the model does not say what the {array.shape[1]} numbers of `{name}` mean, so they are written "
                    "as they are; if they are scores of classes: --as classes (in Python kind='classes')"
                )
        if problems:
            raise DataError(problems)
        return readers

    def _no_scores(self, name: str, array: np.ndarray, task: Task | None) -> Diagnostic | None:
        """Return the problem of classes that are asked for where the model was trained to give one plain number."""
        asked = [f"{w}=" for w in ("top", "probabilities") if getattr(self._wishes, w)]
        one = array.ndim < 2 or (array.ndim == 2 and array.shape[1] == 1)
        if not asked or not one or self._wishes.kind is not None or task is None or task.kind != "values":
            return None
        return Diagnostic(
            T161,
            f"output `{name}` is a number that the model was trained to predict, not the score of a class",
            place=", ".join(asked),
            hint='leave it out; kind="classes" reads the number as a score all the same',
        )

    # ------------------------------------------------------------------ as a table

    def flat_rows(self) -> Iterator[Row]:
        """Yield the rows for a table: `class_2` instead of nested lists, one column per number."""
        return itertools.chain.from_iterable(self.flat_batches())

    def flat_batches(self) -> Iterator[list[Row]]:
        """Yield the rows of one batch at a time, for a table."""
        for rows in self.batches():
            yield [self._flatten(row) for row in rows]

    def _flatten(self, row: Row) -> Row:
        flat: Row = {}
        for key, value in row.items():
            reader = next((r for r in self._readers if r.name == key), None)
            if isinstance(value, dict) and reader is not None:
                flat |= {f"{key}.{name}": v for name, v in _flat_entry(value).items()}
            elif reader is not None and reader.kind == "values" and isinstance(value, list) and reader.flat:
                flat |= {f"{key}_{i}": v for i, v in enumerate(value)}
            else:
                flat |= _flat_entry({key: value})
        return flat

    def to_frame(self) -> Any:
        """Return a pandas frame with one row per sample."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise require_extra("pandas", "data", "a table of predictions") from error
        return pandas.DataFrame(list(self.flat_rows()))

    def save(self, path: str | Path, format: str | None = None) -> int:
        """Write the predictions and return how many there are; the ending of `path` says how: see `FORMATS`.

        The file appears whole, when the last prediction is done.
        """
        from onward.train.prediction_files import write

        return write(self, Path(path), format)

    def _repr_html_(self) -> str:
        rows = list(itertools.islice(self.flat_rows(), 21))
        note = "… and more: to_frame() has all of them" if len(rows) > 20 else ""
        return notebook.panel("Predictions", notebook.grid(rows[:20], note=note))


def _ending(program: Program, output: str) -> str:
    """Return the activation that an output comes out of, as `graph.closing` calls it; empty without one."""
    found = closing(next(v for v in program.infer_graph.model.graph.outputs if v.name == output))
    return "" if found is None else str(found.kind)


def _told(program: Program, outputs: Sequence[str], task: Task | None) -> list[str]:
    """Return the outputs that the task of the model is about: as it says, or the only one that can hold scores."""
    values = {v.name or "": v for v in program.infer_graph.model.graph.outputs}
    if task is not None and task.output in values:
        return [task.output]
    floats = [n for n in outputs if values[n].dtype in FLOAT_TYPES]
    return floats if len(floats) == 1 else []


def _flat_entry(entry: Row) -> Row:
    flat: Row = {}
    for key, value in entry.items():
        if key == "top":
            for i, best in enumerate(value[1:], 2):
                flat |= {f"{name}_{i}": v for name, v in best.items()}
        elif isinstance(value, dict):
            flat |= {f"{key}:{name}": v for name, v in value.items()}
        else:
            flat[key] = value
    return flat


def _kind_of(array: np.ndarray, task: Task | None, wishes: Wishes, ending: str) -> str:
    """Return what an output means, as far as the model, its names and the caller's wishes say."""
    if array.dtype.kind != "f" and array.dtype.name not in ("bfloat16",):
        return "values"
    asked = bool(wishes.top or wishes.probabilities)
    told = "" if task is None else task.kind
    if array.ndim >= 3:
        return {"ctc": "ctc", "classes": "tokens"}.get(told, "values")
    if array.ndim == 2 and array.shape[1] == 1 and len(wishes.classes) == 1 and told in ("labels", "classes"):
        return "labels"  # the one name is that of what the number says, not of its opposite
    if array.ndim < 2 or array.shape[1] == 1:
        two = told in ("labels", "classes") or asked or (len(wishes.classes) == 2 and ending in _SIGMOIDS)
        return "classes" if two else "values"
    if told == "labels" and ending != "SigmoidPair":
        return "labels"
    if told == "classes" or asked or ending in ("Softmax", "SigmoidPair") or 1 < len(wishes.classes) <= array.shape[1]:
        return "classes" if told != "values" or asked else "values"
    return "values"


class _Reader:
    """Turns the array of one output into entries, one per sample."""

    def __init__(self, name: str, kind: str, task: Task, wishes: Wishes, ending: str) -> None:
        self.name, self.kind, self.task, self.wishes, self.ending = name, kind, task, wishes, ending
        self.flat = False
        self._is_probability: bool | None = None

    def problem(self, array: np.ndarray, count: int) -> Diagnostic | None:
        """Return why the array cannot be read, or None; note how wide it is."""
        rank = {"classes": (1, 2), "labels": (2,), "ctc": (3,), "tokens": range(2, 9)}.get(self.kind, range(9))
        rows = self._rows(array)
        shown = f"{array.dtype} {array.shape} for {count} samples"
        if not rows.ndim or len(rows) != count:
            return Diagnostic(
                T160,
                f"output `{self.name}` does not have one entry per sample",
                found=shown,
                needed=f"({count}, …)",
                hint="choose the outputs to write: outputs=…; or one sample at a time: batch_size=1",
            )
        if rows.ndim not in rank or (self.kind != "values" and rows.dtype.kind not in "fiu"):
            return Diagnostic(
                T161,
                f"output `{self.name}` cannot be read as {self.kind}",
                found=shown,
                needed={"classes": "(N, classes)", "labels": "(N, labels)"}.get(self.kind, "(N, steps, classes)"),
            )
        width = rows.shape[-1] if rows.ndim > 1 else 2
        if self.kind != "values" and len(self.wishes.classes) > max(width, 2 if self.kind == "classes" else 0):
            return Diagnostic(
                T161,
                f"there are {len(self.wishes.classes)} names of classes and output `{self.name}` has {width}",
                found=", ".join(self.wishes.classes[:12]) + (", …" if len(self.wishes.classes) > 12 else ""),
                needed=f"at most {width}",
            )
        self.flat = rows.ndim == 2 and rows.shape[1] > 1
        return None

    def _rows(self, array: np.ndarray) -> np.ndarray:
        """Return the array with the samples on axis 0 and, where it holds scores, the classes on the last."""
        if self.kind == "ctc" and array.ndim == 3 and self.task.axis == 0:
            return np.moveaxis(array, 1, 0)
        if self.kind == "tokens" and array.ndim > 2 and self.task.axis not in (-1, array.ndim - 1):
            return np.moveaxis(array, self.task.axis, -1)
        return array

    def read(self, array: np.ndarray, count: int) -> list[Row]:
        """Return one entry per sample."""
        rows = self._rows(array)
        if not rows.ndim or len(rows) != count:
            raise DataError(
                Diagnostic(
                    T160,
                    f"output `{self.name}` does not have one entry per sample in a later batch",
                    found=f"{array.shape} for {count} samples",
                    needed=f"({count}, …)",
                )
            )
        if self.kind == "values":
            if rows.ndim == 2 and rows.shape[1] == 1:
                rows = rows[:, 0]
            return [{self.name: value} for value in plain(rows)]
        if self.kind == "labels":
            chances = self._sigmoid(rows)
            names = [str(self._name(i)) for i in range(chances.shape[1])]
            return [dict(zip(names, row, strict=True)) for row in plain(chances)]
        if self.kind == "classes":
            return self._classes(rows)
        return self._sequence(rows)

    def _classes(self, rows: np.ndarray) -> list[Row]:
        if rows.ndim == 1 or rows.shape[1] == 1:
            one = self._sigmoid(rows.reshape(-1, 1))
            chances = np.concatenate([1 - one, one], axis=1)
        else:
            chances = self._softmax(rows)
        bad = np.isnan(chances).any(axis=1)
        order = np.argsort(-chances, axis=1, kind="stable")
        shown = plain(chances.astype(np.float32))
        entries: list[Row] = []
        for i, best in enumerate(order):
            ranked = best[: max(self.wishes.top, 1)]
            pairs: list[Row] = [{"class": self._name(int(c)), "probability": shown[i][c]} for c in ranked]
            if bad[i]:
                pairs = [{"class": None, "probability": None} for _ in ranked]
            entry: Row = dict(pairs[0])
            if self.wishes.top > 1:
                entry["top"] = pairs
            if self.wishes.probabilities:
                entry["probabilities"] = {str(self._name(c)): shown[i][c] for c in range(chances.shape[1])}
            entries.append(entry)
        return entries

    def _sequence(self, rows: np.ndarray) -> list[Row]:
        best = rows.argmax(axis=-1)
        if self.kind == "tokens":
            names = np.array([self._name(i) for i in range(rows.shape[-1])], dtype=object)
            return [{"tokens": names[row].tolist()} for row in best]
        entries: list[Row] = []
        for row in best:
            changes = row[np.concatenate([[True], row[1:] != row[:-1]])]
            entries.append({"tokens": [self._name(int(c)) for c in changes if c != self.task.blank]})
        return entries

    def _name(self, number: int) -> str | int:
        names = self.wishes.classes
        return names[number] if number < len(names) else str(number) if names else number

    def _softmax(self, rows: np.ndarray) -> np.ndarray:
        """Return probabilities; rows that sum to 1 are left as they are, also where the graph hides its Softmax."""
        rows = rows.astype(np.float64)
        if self._is_probability is None:
            good = rows[np.isfinite(rows).all(axis=1)]
            sums = bool(len(good)) and bool((good >= 0).all() and np.allclose(good.sum(axis=1), 1.0, atol=2e-3))
            self._is_probability = sums or self.ending in ("Softmax", "SigmoidPair")
        if self._is_probability:
            return rows
        shifted = np.exp(rows - rows.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))

    def _sigmoid(self, rows: np.ndarray) -> np.ndarray:
        rows = rows.astype(np.float64)
        if self.ending == "LogSigmoid":
            return np.asarray(np.exp(rows))
        return rows if self.ending in _SIGMOIDS else 0.5 * (1 + np.tanh(rows / 2))


def plain(array: np.ndarray) -> list[Any]:
    """Return nested lists of Python values; a float32 gets no more digits than it has, and NaN becomes None.

    >>> plain(np.array([[0.1, np.nan]], dtype=np.float32)), plain(np.array([3, 4]))
    ([[0.1, None]], [3, 4])
    """
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        numbers = array.astype(np.float64)
        if array.dtype.itemsize < 8:
            exact = array.astype(np.float32)
            numbers = exact.astype("U32").astype(np.float64).reshape(array.shape)
        if not np.isfinite(numbers).all():
            as_objects = numbers.astype(object)
            as_objects[~np.isfinite(numbers)] = None
            return list(as_objects.tolist())
        array = numbers
    elif array.dtype.kind in "SO":
        array = np.array([v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in array.ravel()],
                         dtype=object).reshape(array.shape)  # fmt: skip
    return list(array.tolist())
