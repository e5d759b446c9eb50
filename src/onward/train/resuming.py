"""Helpers for resuming: what a checkpoint holds of a trainer, and whether a run may be resumed here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.errors import CheckpointError, Diagnostic, define

K106 = define(
    "K106",
    "the run would be resumed with another backend, number of threads or version",
    why="The exact results depend on them, so the run would not continue exactly.",
    fix="Use the same ones, or accept the change: allow_changes=True, or --allow-changes.",
)

EXTRA = "onward/"
"""The prefix of tensors of a checkpoint that belong to the run and not to the state of the model."""


def extras(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of a checkpoint that belong to the run."""
    return {name[len(EXTRA) :]: array for name, array in tensors.items() if name.startswith(EXTRA)}


def json_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that JSON can hold; others must be given again when resuming."""
    kept = {}
    for name, value in options.items():
        try:
            kept[name] = json.loads(json.dumps(value))
        except TypeError:
            continue
    return kept


def check_backend(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if anything that the exact results depend on has changed since the checkpoint; list all of it."""
    problems = []
    if stored["name"] != now["name"]:
        problems.append(("backend", stored["name"], now["name"]))
    keys = dict.fromkeys([*stored["describe"], *now["describe"]])
    problems += [
        (key, stored["describe"].get(key), now["describe"].get(key))
        for key in keys
        if stored["describe"].get(key) != now["describe"].get(key)
    ]
    if problems:
        raise CheckpointError(
            [
                Diagnostic(
                    K106,
                    f"{key} has changed since the checkpoint was written",
                    found=str(found),
                    needed=str(needed),
                    hint="the results may differ: use the same, or accept it with allow_changes=True (--allow-changes)",
                )
                for key, needed, found in problems
            ]
        )
