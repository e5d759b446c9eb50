"""What the methods of a trainer are given: each wrong argument named, with what is needed, all at once."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import as_whole, is_number, shown, unknown_name
from onward.compiler.program import Program
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.callbacks import Callback
from onward.train.checkpoint import Checkpoint
from onward.train.data.matching import T115, Preparation, fixed_batch
from onward.train.data.source import ColumnSource, DataSource
from onward.train.loop import FitSettings
from onward.train.numeric import MODES
from onward.train.progress import MODES as PROGRESS

_MAY_CHANGE = ("epochs", "on_nan")  # of a resumed run
_WHOLE = {"epochs": 1, "batch_size": 1, "steps_per_epoch": 1, "seed": 0}  # the least value of each


def check_preparation(preparation: Any, default: Preparation) -> Preparation:
    """Return the preparation that was given, or `default` for None."""
    problem = _preparation_problem(preparation)
    if problem is not None:
        raise ArgumentError(problem)
    return default if preparation is None else preparation


def _preparation_problem(preparation: Any) -> Diagnostic | None:
    if preparation is None or isinstance(preparation, Preparation):
        return None
    hint = "from onward.train import Preparation; preparation=Preparation(scale=1 / 255)"
    return Diagnostic(A101, f"preparation is {shown(preparation)}", needed="a Preparation", hint=hint)


def check_entry(entry: Any, program: Program) -> None:
    """Raise if the program has no training entry of that name; None stands for all of them."""
    if entry is not None and entry not in list(program.steps):
        raise unknown_name("training entry", entry, program.steps)


def check_fit(
    *,
    learning_rate: object,
    validation_data: object,
    callbacks: object,
    preparation: object,
    checkpoint: object,
    checkpoint_every: object,
    keep: object,
    prefetch: object,
    progress: object,
) -> list[Diagnostic]:
    """Return what is wrong with the arguments of `fit` that are no settings of the run."""
    problems: list[Diagnostic] = []
    if callable(learning_rate) and not _takes_one(learning_rate):
        problems.append(
            Diagnostic(A101, "learning_rate is a function of another kind", needed="a function of the step: one number")
        )
    if not (learning_rate is None or callable(learning_rate) or is_number(learning_rate)):
        problems.append(
            Diagnostic(A101, f"learning_rate is {shown(learning_rate)}", needed="a number, or a function of the step")
        )
    if isinstance(validation_data, bool):
        problems.append(
            Diagnostic(A101, f"validation_data is {validation_data}", needed="data, or the share to hold back, as 0.1")
        )
    problems += _callback_problems(callbacks)
    wrong = _preparation_problem(preparation)
    if wrong is not None:
        problems.append(wrong)
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        problems.append(
            Diagnostic(A101, f"checkpoint is {shown(checkpoint)}", needed="the path of a directory, or None")
        )
    if checkpoint_every is not None:
        as_whole("checkpoint_every", checkpoint_every, 1, problems)
    as_whole("keep", keep, 1, problems)
    if prefetch is not None:
        as_whole("prefetch", prefetch, 0, problems)
    if not (isinstance(progress, bool) or progress in PROGRESS):
        problems += unknown_name("kind of progress", progress, PROGRESS).diagnostics
    return problems


def _takes_one(function: Callable[..., Any]) -> bool:
    """Return whether the function can be called with one argument; True where Python cannot tell."""
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
        hint = "a plain function becomes one with FunctionCallback(on_epoch_end=f)" if callable(callback) else ""
        if isinstance(callback, type) and issubclass(callback, Callback):
            hint = f"this is the class; make one: {callback.__name__}(…)"
        problems.append(
            Diagnostic(
                A101,
                f"callbacks[{i}] is {shown(callback)}",
                needed="an object of a subclass of onward.train.Callback",
                hint=hint,
            )
        )
    return problems


def fit_settings(
    program: Program,
    given: Mapping[str, Any],
    resumed: Checkpoint | None,
    has_function: bool,
    problems: Sequence[Diagnostic] = (),
) -> FitSettings:
    """Return the settings of the run; those of a resumed run may not change, except for the number of epochs.

    `problems` are those already found, to be reported together with the ones found here.
    """
    found = list(problems)
    given = {k: as_whole(k, v, _WHOLE[k], found) if k in _WHOLE else v for k, v in given.items() if v is not None}
    for name in ("shuffle", "drop_last"):
        if not isinstance(given.get(name, False), (bool, np.bool_)):
            found.append(Diagnostic(A101, f"{name} is {shown(given[name])}", needed="True or False"))
    if given.get("on_nan", "stop") not in MODES:
        found += unknown_name("on_nan mode", given["on_nan"], MODES).diagnostics
    try:
        check_entry(given.get("entry"), program)
    except ArgumentError as error:
        found += error.diagnostics
    rate = given.get("learning_rate")
    if is_number(rate) and not 0.0 <= float(rate) < float("inf"):  # type: ignore[arg-type]  # a number, as just seen
        found.append(Diagnostic(A101, f"learning_rate is {rate}", needed="a finite number ≥ 0"))
    fixed = fixed_batch((*program.inputs, *program.targets))
    defaults: dict[str, Any] = {"batch_size": fixed, "drop_last": True} if fixed else {}
    if resumed is not None and "run_state" in resumed.data:
        defaults = resumed.data["run_state"]["settings"]
        found += _changes(given, defaults, has_function)
    if found:
        raise ArgumentError(found)
    return FitSettings(**{**defaults, **given})


def _changes(given: Mapping[str, Any], stored: Mapping[str, Any], has_function: bool) -> list[Diagnostic]:
    problems = [
        Diagnostic(
            A101,
            f"{key} differs from the run that is taken up",
            found=f"{key}={value}",
            needed=f"{key}={stored[key]}",
            hint="leave it out, or start a new run from this state with a new Trainer and set_state",
        )
        for key, value in given.items()
        if key not in _MAY_CHANGE and stored[key] != value
    ]
    if isinstance(stored["learning_rate"], str) and not has_function:
        problems.append(
            Diagnostic(
                A101,
                "the run was started with a function for the learning rate",
                needed="the same function as learning_rate=; a checkpoint cannot hold code",
            )
        )
    return problems


def remember_data(preparation: Preparation, source: DataSource, program: Program) -> Preparation:
    """Return the preparation with what is to be remembered of the training data: class names and table columns.

    Raises:
        DataError: the data has more classes than the output of the model.
    """
    if source.table:
        preparation = dataclasses.replace(preparation, table=source.table)
    if not source.classes:
        return preparation
    outputs = program.infer.graph.output
    dims = outputs[0].type.tensor_type.shape.dim if outputs else []
    width = dims[1].dim_value if len(dims) > 1 else 0
    if 1 < width < len(source.classes):
        raise DataError(
            Diagnostic(
                T115,
                f"the data has {len(source.classes)} classes and output `{outputs[0].name}` has {width}",
                found=", ".join(source.classes),
                needed=f"at most {width} classes",
            )
        )
    return dataclasses.replace(preparation, classes=tuple(source.classes))


def hold_back(source: DataSource, fraction: float, seed: int) -> tuple[DataSource, DataSource]:
    """Return the source without a share of its samples, and that share."""
    if not isinstance(source, ColumnSource):
        raise ArgumentError(
            Diagnostic(
                A101,
                "a share of the data can be held back only where every sample can be reached",
                found=type(source).__name__,
                needed="arrays, files or folders; for an iterable pass validation_data=(x, y)",
            )
        )
    return source.split(fraction, seed)
