"""What recognises groups of nodes: the node behind a reshaping, the number behind a repetition."""

from __future__ import annotations

import numpy as np

from onward.frontends.jaxpr.frame import constant_of
from onward.graph.builder import Value

SAME = ("Reshape", "Unsqueeze", "Squeeze", "Identity")
_LARGEST = 4096  # elements of a constant in which to look for one number


def behind(value: Value | None) -> Value | None:
    """Return what a value is a mere reshaping of."""
    while value is not None and (node := value.producer()) is not None and node.op_type in SAME:
        value = node.inputs[0]
    return value


def parts(value: Value | None, op_type: str) -> tuple[Value, ...] | None:
    """Return the inputs of the node behind a value, if it is of this operator."""
    inner = behind(value)
    node = None if inner is None else inner.producer()
    if node is None or node.op_type != op_type or node.domain != "":
        return None
    return tuple(v for v in node.inputs if v is not None)


def number(value: Value | None) -> float | None:
    """Return a constant of one element, perhaps repeated."""
    repeated = parts(value, "Expand")
    inner = behind(value if repeated is None else repeated[0])
    known = None if inner is None else constant_of(inner)
    if known is None or known.size == 0 or known.size > _LARGEST:
        return None
    first = known.reshape(-1)[:1]
    return float(first[0]) if np.array_equal(known.reshape(-1), np.repeat(first, known.size), equal_nan=True) else None
