"""Find the first tensor of a step that holds NaN or Inf, by running it once more with all values as outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from onward.backends.onnxruntime.trace import trace
from onward.compiler.program import Program


@dataclasses.dataclass(frozen=True)
class FirstBad:
    """The first bad tensor: its name, where it was made, what is wrong, and what may help."""

    name: str
    place: str
    what: str
    hint: str = ""


def find_first_bad(
    program: Program, feeds: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray], entry: str | None
) -> FirstBad | None:
    """Return the first NaN (or else the first Inf) in the order batch, state, nodes; None when there is none.

    An Inf alone may be intended (an attention mask), so a NaN is reported first, with the Inf that it came from.
    """
    for name, array in feeds.items():
        if not is_finite(array):
            return FirstBad(
                name,
                "the batch given to the step",
                _what(array),
                "the data itself is bad: clean it, or use on_nan='skip'",
            )
    names = list(program.entries) if entry is None else [entry]
    first_inf: FirstBad | None = None
    values = dict(state)
    for step_name in names:
        step = program.entries[step_name].step
        traced = trace(step.proto(), {**program.settings, **values, **feeds})
        if traced is None:
            return None
        for name, place, array in traced:
            if is_finite(array) or place.endswith("(Constant)"):  # -∞ in a loss or a mask is meant
                continue
            bad = FirstBad(name, place, _what(array))
            if np.isnan(array).any():
                if first_inf is None or first_inf.name == name:
                    return bad
                return dataclasses.replace(
                    bad, place=f"{place}; the first Inf was in `{first_inf.name}`, {first_inf.place}"
                )
            first_inf = first_inf or bad
        by_name = {name: array for name, _, array in traced}
        values.update({s: by_name[o] for o, s in step.replaces.items() if o in by_name})
    return first_inf


def is_finite(array: np.ndarray) -> bool:
    """Return True when no element is NaN or Inf; integers, booleans and strings always are."""
    kind = array.dtype.kind
    if kind == "f" and array.size == 1:  # the loss of every step: the quick way
        return math.isfinite(array.item())
    if kind in "iubSUO" or (kind == "V" and array.dtype.name.startswith(("int", "uint"))):
        return True
    return bool(np.isfinite(array).all())


def _what(array: np.ndarray) -> str:
    return "NaN" if np.isnan(array).any() else "Inf"
