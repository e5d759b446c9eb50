"""Symbolic sizes, such as 2*batch, as int64 numbers of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr import versions
from onward.graph.builder import Builder, Value

if TYPE_CHECKING:
    from onward.frontends.jaxpr.frame import Frame


class Size:
    """A size as an int64 scalar of the graph; JAX evaluates its polynomials over it."""

    def __init__(self, op: Builder, value: Value) -> None:
        self.op = op
        self.value = value

    def _binary(self, operator: str, left: Any, right: Any) -> Size:
        a, b = (x.value if isinstance(x, Size) else self.op.constant(np.int64(x)) for x in (left, right))
        made = getattr(self.op, operator)(a, b)
        made.shape = ir.Shape([])
        return Size(self.op, made)

    def __add__(self, other: Any) -> Size:
        return self if isinstance(other, int) and other == 0 else self._binary("Add", self, other)

    def __mul__(self, other: Any) -> Size:
        return self if isinstance(other, int) and other == 1 else self._binary("Mul", self, other)

    def __sub__(self, other: Any) -> Size:
        return self._binary("Sub", self, other)

    def __rsub__(self, other: Any) -> Size:
        return self._binary("Sub", other, self)

    def __floordiv__(self, other: Any) -> Size:
        return self._binary("Div", self._binary("Sub", self, self % other), other)  # exact, so of any sign

    def __mod__(self, other: Any) -> Size:
        return self._binary("Mod", self, other)  # the sign of the divisor, as Python's

    def __pow__(self, exponent: int) -> Size:
        made = self
        for _ in range(exponent - 1):
            made = made * self
        return made

    __radd__, __rmul__ = __add__, __mul__


def shape_of(sizes: Sequence[Any]) -> ir.Shape:
    """Return a shape for a value: numbers, and the text of symbolic sizes."""
    return ir.Shape([int(d) if versions.is_static(d) else str(d).replace(" ", "") for d in sizes])


def size(frame: Frame, given: Any) -> int | Value:
    """Return a size as a number, or as an int64 scalar of the graph."""
    if versions.is_static(given):
        return int(given)
    known = frame.known_size(str(given))
    if known is None:
        roots = {name: Size(frame.op, value) for name, value in frame.translator.sizes.items()}
        found = versions.size_value(given, roots)
        if not isinstance(found, Size):
            return int(found)
        known = found.value
        frame.sizes[str(given)] = known
    return known


def shape(frame: Frame, sizes: Sequence[Any]) -> Value | np.ndarray:
    """Return a shape as a constant, or as a vector that the graph computes."""
    found = [size(frame, d) for d in sizes]
    if all(isinstance(d, int) for d in found):
        return np.array(found, np.int64)
    parts = [np.array([d], np.int64) if isinstance(d, int) else frame.op.Reshape(d, [1]) for d in found]
    made: Value = parts[0] if len(parts) == 1 else frame.op.Concat(*parts, axis=0)  # type: ignore[assignment]
    return made


def reshape(frame: Frame, x: Value, sizes: Sequence[Any]) -> Value:
    """Return `x` in another shape."""
    free = [i for i, d in enumerate(sizes) if not versions.is_static(d)]
    if len(free) == 1 and 0 not in [d for i, d in enumerate(sizes) if i not in free]:
        made: Value = frame.op.Reshape(x, np.array([-1 if i in free else int(d) for i, d in enumerate(sizes)]))
    else:
        made = frame.op.Reshape(x, shape(frame, sizes), allowzero=1)
    made.shape = shape_of(sizes)
    return made
