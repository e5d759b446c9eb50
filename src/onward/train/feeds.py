"""Check the feeds of one step and convert them to what the model takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.arguments import shown
from onward.compiler.program import Program
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.data.arrays import to_array
from onward.train.data.feed import T112, Feed
from onward.train.data.matching import T110, SizeRule
from onward.train.data.source import T106


def step_feeds(
    feeds: Any, wanted: Mapping[str, Feed], program: Program, settings: Mapping[str, np.ndarray], sizes: SizeRule
) -> dict[str, np.ndarray]:
    """Return the batch and the settings of one step as the model takes them.

    Raises:
        DataError: names, shapes or dtypes that do not fit, all at once.
    """
    specs = (*program.inputs, *program.targets)
    if not isinstance(feeds, Mapping):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the feeds of a step are {shown(feeds)}",
                needed="a dict of arrays by name: " + ", ".join(s.name for s in specs),
            )
        )
    names = [s.name for s in specs]
    own = {s.column_in(feeds): s.name for s in specs}  # the feeds may use the names of a file of ONNX 1.7
    feeds = {own.get(name, name): value for name, value in feeds.items()}
    problems = [
        Diagnostic(
            T110,
            f"the step has no input `{name}`",
            needed="inputs and targets: "
            + ", ".join(names)
            + ("; settings: " + ", ".join(settings) if settings else ""),
        )
        for name in feeds
        if name not in names and name not in settings
    ]
    missing = [name for name in names if name not in feeds]
    if missing:
        problems.append(
            Diagnostic(
                T110,
                "the step lacks " + ", ".join(f"`{n}`" for n in missing),
                found=", ".join(str(n) for n in feeds) or "nothing",
                needed=", ".join(names),
            )
        )
    made: dict[str, np.ndarray] = {}
    for name, value in feeds.items():
        try:
            if name in names:
                made[name] = np.array(
                    wanted[name].make(to_array(value, f"`{name}` of the step", text=wanted[name].dtype.kind == "O"))
                )
            elif name in settings:
                made[name] = _setting(name, value, np.asarray(settings[name]))
        except DataError as error:
            problems += error.diagnostics
    if made and all(made[n].size == 0 for n in names if n in made):
        problems.append(Diagnostic(T106, "the batch of the step holds no samples", needed="at least one sample"))
    differing = None if problems else sizes.problem(program.inputs, program.targets, made)
    if differing is not None:
        problems.append(differing)
    if problems:
        raise DataError(problems)
    return made


def _setting(name: str, value: Any, like: np.ndarray) -> np.ndarray:
    """Return the value of a setting such as `learning_rate` in its own element type."""
    array = to_array(value, f"setting `{name}`")
    if array.dtype.kind not in "fiub" or array.size != like.size or not np.isfinite(array.astype(np.float64)).all():
        raise DataError(
            Diagnostic(
                T112,
                f"setting `{name}` cannot be {shown(value)}",
                needed="a finite number" if like.size == 1 else f"finite numbers of shape {like.shape}",
            )
        )
    return np.asarray(array, dtype=like.dtype).reshape(like.shape)
