"""Arithmetic with sizes that may be known only at run time."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder, Value

Size = int | Value


class Sizes:
    """Arithmetic with sizes: a size is an int, or an int64 value of one element.

    The result is an int if all sizes are ints, else a node computes it.
    """

    op: Builder

    def add(self, a: Size, b: Size) -> Size:
        return a + b if isinstance(a, int) and isinstance(b, int) else self._on("Add", a, b)

    def sub(self, a: Size, b: Size) -> Size:
        return a - b if isinstance(a, int) and isinstance(b, int) else self._on("Sub", a, b)

    def mul(self, *factors: Size) -> Size:
        number, values = 1, []
        for factor in factors:
            if isinstance(factor, int):
                number *= factor
            else:
                values.append(factor)
        if not values:
            return number
        total = values[0]
        for value in values[1:]:
            total = self.op.Mul(total, value)
        return total if number == 1 else self._on("Mul", total, number)

    def div(self, a: Size, b: Size) -> Size:
        """Return the quotient of sizes, rounded down; none is negative."""
        return a // b if isinstance(a, int) and isinstance(b, int) else self._on("Div", a, b)

    def most(self, a: Size, b: Size) -> Size:
        return max(a, b) if isinstance(a, int) and isinstance(b, int) else self._on("Max", a, b)

    def least(self, a: Size, b: Size) -> Size:
        return min(a, b) if isinstance(a, int) and isinstance(b, int) else self._on("Min", a, b)

    def _on(self, op_type: str, a: Size, b: Size) -> Value:
        left, right = ([v] if isinstance(v, int) else v for v in (a, b))
        (out,) = self.op.call(op_type, [left, right])
        out.shape = ir.Shape([1])
        return out
