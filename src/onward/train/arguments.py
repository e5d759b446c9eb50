"""The arguments of the methods of a trainer: their defaults and their checks, which report all problems at once."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.arguments import as_whole, is_number, shown, unknown_name
from onward.augment.base import Augmentation
from onward.augment.text import as_augmentations, describe, restore
from onward.compiler.program import Program
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.passes.recompute.settings import Recompute, Store
from onward.train.asked import class_count, default_output
from onward.train.callbacks import Callback, as_callback
from onward.train.checkpoint import Checkpoint
from onward.train.data import Data
from onward.train.data.class_numbers import T115
from onward.train.data.matching import fixed_batch
from onward.train.data.preparation import Preparation
from onward.train.data.source import ColumnSource, DataSource
from onward.train.metrics import Metric
from onward.train.numeric import MODES
from onward.train.progress import MODES as PROGRESS
from onward.train.weights import argument_problems as weight_problems
from onward.train.weights import described as weights_described

Schedule = Callable[[int], float]

_MAY_CHANGE = ("epochs", "on_nan")  # of a resumed run
_FROM_ONE = ("checkpoint_every", "keep", "epochs", "batch_size", "steps_per_epoch")
_LEAST = {**dict.fromkeys(_FROM_ONE, 1), "prefetch": 0, "seed": 0, "workers": 0}


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """The arguments of `Trainer.fit`. Those up to `learning_rate` decide the course of a run; checkpoints keep them."""

    epochs: int = 1
    batch_size: int = 32
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    entry: str | None = None
    steps_per_epoch: int | None = None
    on_nan: str = "stop"
    augment: Sequence[Augmentation] = ()
    keep_best: bool | str = False
    class_weight: str | Mapping[str, float] | None = None
    sample_weight: Any = None
    sampler: str | None = None
    learning_rate: float | Schedule | None = None
    validation_data: Data | float | None = None
    metrics: Sequence[str | Metric] = ()
    callbacks: Sequence[Callback] = ()
    preparation: Preparation | None = None
    target: Any = None
    features: Any = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = None
    keep: int = 3
    prefetch: int | None = None
    workers: int | None = None
    progress: str | bool = "auto"

    @classmethod
    def of(cls, program: Program, resumed: Checkpoint | None, **given: Any) -> FitSettings:
        """Return the given settings. None stands for the setting of the resumed run, or else for the default.

        Raises:
            ArgumentError: wrong settings, or other settings than those of the resumed run; all at once.
        """
        given = {n: v for n, v in given.items() if v is not None or n in ("metrics", "callbacks", "progress")}
        if isinstance(given.get("callbacks"), Iterable):
            given["callbacks"] = [as_callback(c) for c in given["callbacks"]]
        problems = _problems(given, program)
        if "augment" in given:
            given["augment"] = _augmentations(given["augment"], problems)
        if isinstance(given.get("class_weight"), Mapping):
            given["class_weight"] = {str(c): w for c, w in given["class_weight"].items()}
        for name, least in _LEAST.items():
            if name in given:
                given[name] = as_whole(name, given[name], least, problems)
        fixed = fixed_batch((*program.inputs, *program.targets))
        defaults: dict[str, Any] = {"batch_size": fixed, "drop_last": True} if fixed else {}
        if program.phases and "entry" not in given:
            defaults["epochs"] = sum(program.phases.values())
        if resumed is not None and resumed.run_state is not None:
            defaults = {"augment": [], **resumed.run_state["settings"]}
            problems += _changes(given, defaults)
            defaults["augment"] = restore(defaults["augment"]) or ()
        if problems:
            raise ArgumentError(problems)
        if resumed is not None:
            defaults = {**defaults, "checkpoint": resumed.path.parent}
        plain = {n: v.item() for n, v in given.items() if isinstance(v, np.generic)}  # JSON cannot hold numpy's numbers
        return cls(**{**defaults, **given, **plain})

    @property
    def schedule(self) -> Schedule | None:
        """The learning rate as a function of the step; None when it is a number, or the model's own."""
        return self.learning_rate if callable(self.learning_rate) else None

    def stored(self) -> dict[str, Any]:
        """Return the settings that checkpoints keep, as JSON."""
        names = [f.name for f in dataclasses.fields(self)]
        kept = {name: getattr(self, name) for name in names[: names.index("learning_rate")]}
        described = {"augment": describe(self.augment), "sample_weight": weights_described(self.sample_weight)}
        return {**kept, **described, "learning_rate": _described(self.learning_rate)}

    @property
    def weighted(self) -> bool:
        """Whether the loss of the training steps takes weights."""
        return self.class_weight is not None or self.sample_weight is not None


def _problems(given: Mapping[str, Any], program: Program) -> list[Diagnostic]:
    """Return what is wrong with the arguments of `fit`, except for whole numbers."""
    problems = [
        *_rate_problems(given.get("learning_rate")),
        *_callback_problems(given.get("callbacks", ())),
        *_preparation_problems(given.get("preparation")),
        *weight_problems(given),
    ]

    def need(name: str, is_right: bool, needed: str) -> None:
        if not is_right:
            problems.append(Diagnostic(A101, f"{name} is {shown(given[name])}", needed=needed))

    validation = given.get("validation_data")
    need("validation_data", not isinstance(validation, bool), "data, or the share to hold back, as 0.1")
    need("checkpoint", isinstance(given.get("checkpoint", ""), (str, os.PathLike)), "the path of a directory, or None")
    best = given.get("keep_best", False)
    need("keep_best", isinstance(best, (bool, str)), "True, False, or the column that says what is best")
    need("shuffle", isinstance(given.get("shuffle", True), (bool, np.bool_)), "True or False")
    need("drop_last", isinstance(given.get("drop_last", True), (bool, np.bool_)), "True or False")
    names = {"progress": ("kind of progress", PROGRESS), "on_nan": ("on_nan=", MODES)}
    for name, (kind, valid) in {**names, "entry": ("training entry", tuple(program.entries))}.items():
        if name in given and given[name] not in valid and not (name == "progress" and isinstance(given[name], bool)):
            problems += unknown_name(kind, given[name], valid).diagnostics
    return problems


def _augmentations(given: Any, problems: list[Diagnostic]) -> tuple[Augmentation, ...]:
    try:
        return as_augmentations(given)
    except ArgumentError as error:
        problems += error.diagnostics
        return ()


def _rate_problems(rate: Any) -> list[Diagnostic]:
    found, needed = f"learning_rate is {shown(rate)}", ""
    if callable(rate):
        if not _takes_one(rate):
            found, needed = "learning_rate is a function that does not take one argument", "a function of the step"
    elif rate is not None and not is_number(rate):
        needed = "a number, or a function of the step"
    elif rate is not None and not 0.0 <= float(rate) < float("inf"):
        needed = "a finite number ≥ 0"
    return [Diagnostic(A101, found, needed=needed)] if needed else []


def _described(rate: float | Schedule | None) -> float | str | None:
    """Return the rate itself, or for a function what a checkpoint can say about it."""
    if not callable(rate):
        return rate
    describe = getattr(rate, "describe", None)  # onward.schedules say what they are
    return json.dumps(describe(), sort_keys=True) if callable(describe) else "function"


def check_preparation(preparation: Any, default: Preparation) -> Preparation:
    """Return the preparation that was given, or `default` for None.

    The names of the classes are those of `default` unless others are given: the outputs of the model stand for them.
    """
    problems = _preparation_problems(preparation)
    if problems:
        raise ArgumentError(problems)
    if preparation is None:
        return default
    assert isinstance(preparation, Preparation)
    return dataclasses.replace(preparation, classes=preparation.classes or default.classes)


def _preparation_problems(preparation: Any) -> list[Diagnostic]:
    if preparation is None or isinstance(preparation, Preparation):
        return []
    hint = "from onward.train import Preparation; preparation=Preparation(scale=1 / 255)"
    return [Diagnostic(A101, f"preparation is {shown(preparation)}", needed="a Preparation", hint=hint)]


def check_entry(entry: Any, program: Program) -> None:
    """Raise if the program has no training entry of that name; None stands for all of them."""
    if entry is not None and entry not in list(program.entries):
        raise unknown_name("training entry", entry, program.entries)


def check_profile(profile: str | None, program: Program) -> None:
    """Raise if a program that was compiled before has another profile than the one asked for."""
    if profile is not None and profile != program.profile:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the program has the profile `{program.profile}`",
                needed=f"a program of the profile `{profile}`",
                hint="compile the model again with that profile, or leave out `profile`",
            )
        )


def check_recompute(wanted: Recompute | None, program: Program) -> None:
    """Raise if a program that was compiled before recomputes something else than what is asked for."""
    if wanted is not None and wanted != program.recompute:
        found = "nothing" if program.recompute is None else shown(program.recompute.asked)
        raise _compiled_otherwise("recompute", found, shown(wanted.asked))


def check_store(wanted: Store | None, program: Program) -> None:
    """Raise if a program that was compiled before stores values in another type than what is asked for."""
    if wanted is not None and wanted != program.store:
        found = "float32 for all values" if program.store is None else shown(program.store.dtype)
        raise _compiled_otherwise("store", found, shown(wanted.dtype))


def _compiled_otherwise(argument: str, found: str, needed: str) -> ArgumentError:
    return ArgumentError(
        Diagnostic(
            A101,
            f"the program was compiled with another `{argument}`",
            found=found,
            needed=needed,
            hint=f"compile the model again with it, or leave out `{argument}`",
        )
    )


def _takes_one(function: Callable[..., Any]) -> bool:
    """Return whether the function can be called with one argument; True where Python does not know."""
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return True
    return True


def _callback_problems(callbacks: object) -> list[Diagnostic]:
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        return [
            Diagnostic(
                A101, f"callbacks is {shown(callbacks)}", needed="a list of callbacks", hint="put it into a list: [...]"
            )
        ]
    problems = []
    for i, callback in enumerate(callbacks):
        if isinstance(callback, Callback):
            continue
        hint = "a function takes (run, logs) or (logs); it is called after each epoch" if callable(callback) else ""
        if isinstance(callback, type) and issubclass(callback, Callback):
            hint = f"this is the class; make one: {callback.__name__}(…)"
        problems.append(
            Diagnostic(
                A101,
                f"callbacks[{i}] is {shown(callback)}",
                needed="a function of (run, logs), or an object of a subclass of onward.train.Callback",
                hint=hint,
            )
        )
    return problems


def _changes(given: Mapping[str, Any], stored: Mapping[str, Any]) -> list[Diagnostic]:
    """Return the settings that differ from those of the resumed run but must not."""
    rate = given.get("learning_rate")
    now = {**given, "learning_rate": _described(rate)} if rate is not None else dict(given)
    if "augment" in given:
        now["augment"] = describe(given["augment"])
    if "sample_weight" in now:
        now["sample_weight"] = weights_described(now["sample_weight"])
    problems = [
        Diagnostic(
            A101,
            f"{key} differs from the run that is resumed",
            found=f"{key}={value}",
            needed=f"{key}={stored[key]}",
            hint="leave it out, or start a new run from this state with a new Trainer and set_state",
        )
        for key, value in now.items()
        if key in stored and key not in _MAY_CHANGE and stored[key] != value
    ]
    if "augment" not in given and restore(stored["augment"]) is None:
        problems.append(
            Diagnostic(
                A101,
                "the run was started with a function that augments the data",
                needed="the same augment=; a checkpoint cannot hold code",
            )
        )
    if str(stored.get("sample_weight")).startswith("sha256:") and "sample_weight" not in given:
        problems.append(
            Diagnostic(A101, "the run was started with an array of sample weights", needed="the same as sample_weight=")
        )
    if isinstance(stored["learning_rate"], str) and not callable(rate):
        problems.append(
            Diagnostic(
                A101,
                "the run was started with a function for the learning rate",
                needed="the same function as learning_rate=; a checkpoint cannot hold code",
            )
        )
    return problems


def remember_data(preparation: Preparation, source: DataSource, program: Program) -> Preparation:
    """Return the preparation with the class names and table columns of the training data.

    Raises:
        DataError: the data has more classes than the output of the model.
    """
    if source.table:
        preparation = dataclasses.replace(preparation, table=source.table)
    if not source.classes:
        return preparation
    width = class_count(program)
    if 0 < width < len(source.classes):
        raise DataError(
            Diagnostic(
                T115,
                f"the data has {len(source.classes)} classes and output `{default_output(program)}` has {width}",
                found=", ".join(source.classes),
                needed=f"at most {width} classes",
            )
        )
    return dataclasses.replace(preparation, classes=tuple(source.classes))


def hold_back(source: DataSource, fraction: float, seed: int, by: str | None = None) -> tuple[DataSource, DataSource]:
    """Return the source without a share of its samples, and that share; of each class in column `by` the same share."""
    if not isinstance(source, ColumnSource):
        raise ArgumentError(
            Diagnostic(
                A101,
                "a share of the data can be held back only where every sample can be reached",
                found=type(source).__name__,
                needed="arrays, files or folders; for an iterable pass validation_data=(x, y)",
            )
        )
    return source.split(fraction, seed, by)
