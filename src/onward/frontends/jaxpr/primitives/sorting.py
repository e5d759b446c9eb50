"""Sorting and the greatest elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.frontends.jaxpr.frame import Frame
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.graph.builder import Value

_TYPES = (np.float32, np.float64, np.int32, np.int64)


@primitive("sort")
def sort(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """In ascending order of the first array; the others are put in the same order. Equal elements keep theirs."""
    op, axis = frame.op, int(equation.params["dimension"])
    if equation.params["num_keys"] != 1:
        raise UnsupportedError("a sort by several arrays")
    aval = equation.invars[0].aval
    wide = aval.dtype if aval.dtype in _TYPES else np.float32 if aval.dtype == np.float16 else np.int64
    length = frame.shape([aval.shape[axis]])
    keys, places = op.multi("TopK", frame.cast(values[0], wide), length, outputs=2, axis=axis, largest=0, sorted=1)
    results = [frame.cast(keys, aval.dtype)]
    for value, variable in zip(values[1:], equation.invars[1:], strict=True):
        if variable.aval.dtype == bool:
            results.append(frame.cast(op.GatherElements(frame.cast(value, np.int32), places, axis=axis), bool))
        else:
            results.append(op.GatherElements(value, places, axis=axis))
    return results


@primitive("top_k")
def top_k(frame: Frame, equation: Any, x: Value) -> list[Value]:
    """The greatest elements of each row, and their places."""
    params, aval = equation.params, equation.invars[0].aval
    axis = int(params.get("axis", len(aval.shape) - 1)) % len(aval.shape)
    wide = aval.dtype if aval.dtype in _TYPES else np.float32 if aval.dtype == np.float16 else np.int64
    found, places = frame.op.multi(
        "TopK", frame.cast(x, wide), np.array([params["k"]], np.int64), outputs=2, axis=axis, largest=1, sorted=1
    )
    return [frame.cast(found, aval.dtype), frame.cast(places, equation.outvars[1].aval.dtype)]
