"""Evaluation and prediction over any number of batches, exact also for a smaller last batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onward.backends.base import Outputs, Session
from onward.compiler import loss_over_batches as totals
from onward.compiler.program import Program, TensorSpec, total_names
from onward.errors import BackendError, DataError, Diagnostic
from onward.graph import shapes
from onward.model.task import Task
from onward.train.asked import Asked
from onward.train.data.class_numbers import T115
from onward.train.data.matching import Matching, fixed_batch
from onward.train.data.prefetch import read_ahead
from onward.train.data.preparation import Preparation
from onward.train.data.source import Batch, DataSource, batch_length, no_batches


def evaluated_targets(program: Program, preparation: Preparation, target: Any = None) -> tuple[TensorSpec, ...]:
    """Return the targets that an evaluation reads: with several training entries those of the first.

    An inference model has none of its own. For a table, the target is what the preparation names beside the inputs:
    the column of the training data, or the one that the user named, also as `target`.
    """
    if program.first is None:
        inputs = {s.name for s in program.inputs}
        counts = {name: len(columns) for name, columns in preparation.table.items()}
        counts |= {name: len(c.split(",") if isinstance(c, str) else c) for name, c in preparation.columns.items()}
        widths = {name: (None,) if n == 1 else (None, n) for name, n in counts.items() if name not in inputs}
        if target is not None and not widths:
            widths = {"target": (None,) if isinstance(target, str) or len(target) == 1 else (None, len(target))}
        return tuple(TensorSpec(name, "float64", shape) for name, shape in widths.items())
    if program.first.evaluate is None:
        return program.targets
    read = program.first.evaluate.input_names
    return tuple(t for t in program.targets if t.name in read)


def loose_targets(program: Program, source: DataSource) -> tuple[TensorSpec, ...]:
    """Return the targets of the program, or for an inference model the first column that is not an input."""
    if program.targets:
        return program.targets
    columns = source.specs()
    inputs = [s.name for s in program.inputs]
    named = any(c.name in inputs for c in columns)
    left = [c for c in columns if c.name not in inputs] if named else columns[len(inputs) :]
    return tuple(dataclasses.replace(c, name=c.name if named else "target") for c in left[:1])


def output_names(program: Program) -> list[str]:
    """Return the outputs of the inference graph in order."""
    return list(program.infer_graph.output_names)


@contextlib.contextmanager
def explaining(program: Program, feeds: Mapping[str, Any]) -> Iterator[None]:
    """Refuse class numbers below 0, and explain a failure of the backend that a class number causes.

    A runtime may read -1 as the last class, as numpy does with an index, and train on it silently.
    """
    problems = list(_negative_labels(program, feeds))
    if problems:
        raise DataError(problems)
    try:
        yield
    except (BackendError, IndexError) as error:
        if isinstance(error, BackendError) and error.code == "B200":
            raise  # a graph that cannot be loaded says nothing about the labels
        problems = list(_bad_labels(program, feeds))
        if problems:
            raise DataError(problems) from error
        raise


def _negative_labels(program: Program, feeds: Mapping[str, Any]) -> Iterator[Diagnostic]:
    for name, ignored in program.class_targets.items():
        values = np.asarray(feeds.get(name, ()))
        if values.size and values.dtype.kind == "i" and int(values.min()) < 0:
            below = set(np.unique(values[values < 0]).tolist()) - ignored
            if below:
                yield Diagnostic(
                    T115,
                    f"`{name}` holds class {min(below)}",
                    found=f"classes from {int(values.min())} to {int(values.max())} in this batch",
                    needed="classes from 0 up" + "".join(f", or {n} for none" for n in sorted(ignored)),
                    hint=f"to leave samples out, make the model with losses.CrossEntropy(ignore_index={min(below)})",
                )


def _bad_labels(program: Program, feeds: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Yield integer targets beyond the number of classes; called only after a failure, since 255 may mean "ignore"."""
    task = Task.of_metadata(program.infer_graph.model.metadata_props)
    axis = 1 if task is None else -1 if task.kind == "ctc" else task.axis
    for output in program.infer_graph.model.graph.outputs:
        dims = [d if isinstance(d, int) else 0 for d in shapes.dims(output) or ()]
        count = dims[axis] if -len(dims) <= axis < len(dims) else 0
        for target in program.targets:
            values = np.asarray(feeds.get(target.name, ()))
            is_class = values.dtype.kind in "iu" and values.size and len(dims) == values.ndim + 1 and count > 0
            if is_class and int(values.max()) >= count:
                highest = int(values.max())
                yield Diagnostic(
                    T115,
                    f"`{target.name}` holds class {highest}, and output `{output.name}` has {count} classes",
                    found=f"classes from {int(values.min())} to {highest} in this batch",
                    needed=f"0 to {count - 1}",
                )


class _Sums:
    """Computes the loss and other scalars over batches of any size."""

    def __init__(self, program: Program) -> None:
        self._loss = program.loss
        self._expression = None if program.first is None else program.first.totals
        self._parts = total_names(self._expression)
        self._samples = 0
        self._sums: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def add(self, outputs: Outputs, samples: int) -> None:
        """Add the outputs of one batch."""
        self._samples += samples
        for name, value in outputs.items():
            if np.ndim(value) == 0 or (name in (self._loss, *self._parts) and np.size(value) == 1):
                number = float(np.asarray(value).ravel()[0])
                if name in self._parts:
                    self._last[name] = number
                self._sums[name] = self._sums.get(name, 0.0) + number * (1 if name in self._parts else samples)

    def result(self) -> dict[str, Any]:
        """Return the loss as `loss`, and the other numbers as means over the samples."""
        found: dict[str, Any] = {}
        for name, total in self._sums.items():
            if name not in self._parts:
                found["loss" if name == self._loss else name] = total / self._samples
        if self._expression is not None and "loss" in found:
            found["loss"] = totals.evaluate(self._expression, self._sums, self._last)
        return found


def run_evaluation(
    session: Session,
    source: DataSource,
    matching: Matching,
    batch_size: int,
    metrics: Sequence[Asked],
    poll: Callable[[], None] = lambda: None,
    entry: str | None = None,
) -> dict[str, Any]:
    """Return the loss, other scalar outputs (means over the samples) and the metrics over the whole source.

    The loss is that of the training entry `entry`, by default of the first. A model without a loss gives the metrics
    alone. For a model with a fixed batch size a last, smaller batch is filled up for the metrics and left out of the
    means.
    """
    program = session.program.for_entry(entry)
    for asked in metrics:
        asked.metric.reset()
    fixed = fixed_batch([f.spec for f in matching.feeds])
    sums = _Sums(program)
    batches = 0
    for batch in read_ahead(source, batch_size):
        poll()
        batches += 1
        feeds = matching.make(batch)
        samples = batch_length(feeds)
        padded = fixed is not None and samples < fixed
        with explaining(program, feeds):
            filled = _fill(feeds, fixed or 0)
            outputs = session.infer(filled) if program.first is None else session.evaluate(filled, entry=entry)
        if padded:
            outputs = {k: v[:samples] if np.ndim(v) and len(v) == fixed else v for k, v in outputs.items()}
        else:
            sums.add(outputs, samples)
        for asked in metrics:
            asked.update(outputs, feeds)
    if not batches:
        raise no_batches("the evaluation")
    result = sums.result()
    for asked in metrics:
        if not asked.failed:
            result[asked.label] = asked.compute()
    return result


def run_prediction(session: Session, source: DataSource, matching: Matching, batch_size: int) -> dict[str, np.ndarray]:
    """Return every output of the inference graph over the whole source, in the order of the data."""
    parts: dict[str, list[np.ndarray]] = {}
    for _, outputs in predict_batches(session, source, matching, batch_size):
        for name, value in outputs.items():
            parts.setdefault(name, []).append(np.atleast_1d(value))
    if not parts:
        raise no_batches("the prediction")
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def predict_batches(
    session: Session, source: DataSource, matching: Matching, batch_size: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield (number of samples, outputs of the inference graph) batch by batch, in the order of the data."""
    fixed = fixed_batch([f.spec for f in matching.feeds])
    for batch in read_ahead(source, batch_size):
        feeds = matching.make(batch)
        samples = batch_length(feeds)
        if fixed is not None and samples < fixed:
            outputs = session.infer(_fill(feeds, fixed))
            yield samples, {k: v[:samples] if np.ndim(v) and len(v) == fixed else v for k, v in outputs.items()}
        else:
            yield samples, session.infer(feeds)


def _fill(feeds: Batch, size: int) -> Batch:
    """Return the batch with its last sample repeated up to `size`; unchanged when it is not smaller."""
    if size <= batch_length(feeds):
        return feeds
    return {
        name: np.concatenate([a, np.repeat(a[-1:], size - len(a), axis=0)]) if np.ndim(a) else a
        for name, a in feeds.items()
    }
