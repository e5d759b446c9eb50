"""Weights of classes and samples, and balanced sampling, for one call of `fit`.

The weights go into the loss of the training step alone (`author/sample_weights.py`): a validation, and `evaluate`, give
the loss without them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import is_number, shown
from onward.author.sample_weights import SAMPLE_WEIGHT, add_sample_weight
from onward.backends.processes import Rows
from onward.compiler.compile import compile_model
from onward.compiler.program import Program, TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.model.training_model import TrainingModel
from onward.train.asked import class_count
from onward.train.data.feed import Feed
from onward.train.data.matching import Matching
from onward.train.data.preparation import Preparation
from onward.train.data.source import Batch, ColumnSource, DataSource

T145 = "T145"

SAMPLERS = ("balanced",)


def weighted_program(program: Program, model: TrainingModel | None, entry: str | None, split: bool) -> Program:
    """Return the program whose training steps take a weight for each sample as their last target.

    Evaluation and inference stay as they are.

    Raises:
        ArgumentError: the loss cannot take weights, or the program was not made from a model.
    """
    if model is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a Program cannot take weights of classes or samples: its loss is compiled",
                hint="make the Trainer from the model or its file",
            )
        )
    again = {} if program.recompute is None else program.recompute.arguments()
    narrow = {} if program.store is None else program.store.arguments()
    weighted = compile_model(
        add_sample_weight(model, entry)[0],
        split=split,
        profile=program.profile,
        choices=program.choices,
        **{**again, **narrow},
    )
    entries = {
        name: dataclasses.replace(
            e,
            step=weighted.entries[name].step,
            gradients=weighted.entries[name].gradients,
            update=weighted.entries[name].update,
        )
        for name, e in program.entries.items()
    }
    return dataclasses.replace(program, entries=entries, targets=weighted.targets)


def weight_spec(program: Program, weighted: Program) -> TensorSpec:
    """Return the target that the weights are fed to."""
    known = {t.name for t in program.targets}
    return next(t for t in weighted.targets if t.name not in known)


def described(sample_weight: Any) -> Any:
    """Return what a checkpoint keeps of `sample_weight=`: the name of a column, or the digest of an array."""
    if sample_weight is None or isinstance(sample_weight, str):
        return sample_weight
    array = np.ascontiguousarray(np.asarray(sample_weight, dtype=np.float64))
    return "sha256:" + hashlib.sha256(array.tobytes()).hexdigest()


def argument_problems(given: Mapping[str, Any]) -> list[Diagnostic]:
    """Return what is wrong with `class_weight=`, `sample_weight=` and `sampler=`."""
    problems: list[Diagnostic] = []
    classes, samples, sampler = (given.get(n) for n in ("class_weight", "sample_weight", "sampler"))
    if classes is not None and classes != "balanced" and not _is_weight_map(classes):
        needed = '"balanced", or a dict: class -> a number of at least 0'
        problems.append(Diagnostic(A101, f"class_weight is {shown(classes)}", needed=needed))
    if sampler is not None and sampler not in SAMPLERS:
        problems.append(Diagnostic(A101, f"sampler is {shown(sampler)}", needed=f"one of: {', '.join(SAMPLERS)}"))
    if sampler is not None and given.get("shuffle") is False:
        problems.append(
            Diagnostic(
                A101, "sampler draws a random order, and shuffle=False keeps that of the data", needed="one of them"
            )
        )
    if samples is not None and not isinstance(samples, str):
        array = np.asarray(samples)
        if array.dtype.kind not in "fiub" or array.ndim != 1:
            needed = "the name of a column, or an array with one number per sample"
            problems.append(Diagnostic(A101, f"sample_weight is {shown(samples)}", needed=needed))
    return problems


def _is_weight_map(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(is_number(w) and 0 <= w < float("inf") for w in value.values())
        and all(isinstance(c, (str, int, np.integer)) and not isinstance(c, bool) for c in value)
    )


def check_sample_weights(values: np.ndarray, place: str = "sample_weight") -> None:
    """Raise if a weight is negative, or no number; or if all are 0."""
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        first = int(np.argmax(bad))
        raise DataError(
            Diagnostic(
                T145,
                f"{int(bad.sum())} sample weights are negative or no numbers",
                place=f"{place}, first in sample {first + 1}",
                found=str(values[first]),
                needed="finite numbers of at least 0",
            )
        )
    if values.size and not values.any():
        raise DataError(Diagnostic(T145, "all sample weights are 0", place=place, needed="some above 0"))


@dataclasses.dataclass(frozen=True)
class ClassTarget:
    """The one target that says the class of each sample, and the names of the classes."""

    spec: TensorSpec
    names: Sequence[str]
    feed: Feed
    count: int
    """How many classes there are; 0 where the model does not say."""

    @classmethod
    def of(
        cls, program: Program, source: DataSource, matching: Matching, preparation: Preparation, wanted_by: str
    ) -> ClassTarget:
        """Return the target with classes.

        Raises:
            ArgumentError: the model has no target, or several, so that the class is not known; or the classes are of
                pixels or the like.
        """
        read = set(program.class_targets)
        found = [t for t in program.targets if t.name in read] or list(program.targets)
        if len(found) != 1 or len(found[0].shape) > 2:
            raise ArgumentError(
                Diagnostic(
                    T145,
                    f"{wanted_by} needs one class for each sample",
                    found="targets: " + (", ".join(f"`{t.name}` {t.dtype} {t.shape}" for t in found) or "none"),
                    needed="one target with a class number per sample, or with a row of 0 and 1",
                    hint="for classes of pixels or of several targets, weigh in the loss: CrossEntropy(weight=[…])",
                )
            )
        names = preparation.classes or tuple(source.classes)
        feed = next(f for f in matching.feeds if f.spec.name == found[0].name)
        width = found[0].shape[1] if len(found[0].shape) == 2 else 0
        rows = width if isinstance(width, int) and width > 1 else 0
        return cls(found[0], names, feed, max(len(names), rows or class_count(program)))

    def of_batch(self, target: np.ndarray) -> np.ndarray:
        """Return the class number of each sample.

        Raises:
            DataError: the target does not hold classes.
        """
        if target.ndim == 2 and target.shape[1] > 1:
            rows = np.asarray(target)
            if not (np.isin(rows, (0, 1)).all() and (rows.sum(axis=1) == 1).all()):
                raise self._no_classes("rows that are not one 1 among zeros")
            return np.asarray(rows.argmax(axis=1))
        flat = np.asarray(target).reshape(len(target))
        if flat.dtype.kind == "f" and not np.array_equal(flat, np.rint(flat)):
            raise self._no_classes(f"fractions, such as {flat[flat != np.rint(flat)][0]}")
        return flat.astype(np.int64)

    def _no_classes(self, found: str) -> DataError:
        return DataError(
            Diagnostic(T145, f"target `{self.spec.name}` does not hold classes", found=found, needed="class numbers")
        )

    def of_source(self, source: ColumnSource) -> np.ndarray:
        """Return the class number of every sample, without reading its other columns."""
        return self.of_batch(self.feed.make(source.columns[self.feed.column].take(slice(None))))

    def _is_number(self, key: str) -> bool:
        """Return whether a key of `class_weight` is the number of a class."""
        return key.lstrip("-").isdigit() and (not self.count or 0 <= int(key) < self.count)

    def weights(self, given: str | Mapping[str, float], source: DataSource) -> dict[int, float]:
        """Return class number -> weight. "balanced" is N / (K · n) for a class of n among N samples of K classes.

        Raises:
            ArgumentError: a class that the data does not have, or "balanced" for data that can only be read once.
        """
        if not isinstance(given, str):
            names = {name: i for i, name in enumerate(self.names)}
            unknown = [c for c in given if c not in names and not self._is_number(c)]
            if unknown:
                raise ArgumentError(
                    Diagnostic(
                        T145,
                        "class_weight names classes that the data does not have: " + ", ".join(unknown),
                        needed=(f"class numbers from 0 to {self.count - 1}" if self.count else "class numbers")
                        + (f", or: {', '.join(self.names)}" if self.names else ""),
                    )
                )
            return {names.get(c, int(c) if c not in names else 0): w for c, w in given.items()}
        if not isinstance(source, ColumnSource):
            raise ArgumentError(
                Diagnostic(
                    T145,
                    'class_weight="balanced" needs all labels before the first step',
                    found=type(source).__name__,
                    needed="data that can be read in any order, or a dict of weights",
                )
            )
        numbers, counts = np.unique(self.of_source(source), return_counts=True)
        return {int(c): float(counts.sum() / (len(counts) * n)) for c, n in zip(numbers, counts, strict=True)}


class WeightedMatching(Matching):
    """Makes the feeds of a model, and the weight of each sample: that of its class times its own."""

    def __init__(
        self, plain: Matching, spec: TensorSpec, target: ClassTarget | None, classes: Mapping[int, float]
    ) -> None:
        super().__init__(plain.feeds, plain._sizes)
        self._spec, self._target = spec, target
        self.weight = spec.name
        self._classes = classes

    def make(self, batch: Batch) -> Batch:
        """Return the feeds for one batch of the source."""
        feeds = super().make(batch)
        weight = feeds.get(self._spec.name)
        if weight is not None:
            check_sample_weights(np.asarray(weight)[np.asarray(weight) != 0], "sample_weight of a batch")
        if self._target is not None:
            numbers = self._target.of_batch(np.asarray(feeds[self._target.spec.name]))
            by_class = np.array([self._classes.get(int(c), 1.0) for c in numbers])
            weight = by_class if weight is None else by_class * np.asarray(weight, dtype=np.float64)
        assert weight is not None
        total = next((a.total for a in feeds.values() if isinstance(a, Rows)), 0)
        made = np.asarray(weight, dtype=self._spec.dtype)
        return {**feeds, self._spec.name: Rows.of(made, total) if total else made}


__all__ = ["SAMPLE_WEIGHT", "ClassTarget", "WeightedMatching", "weight_spec", "weighted_program"]
