"""The table of decompositions.

A decomposition is one function. It makes nodes, of core operators or of others that have a decomposition themselves,
and returns the outputs:

    @decomposition("Reciprocal")
    def reciprocal(at: Lowering) -> Value:
        '''1 / X.'''
        return at.op.Div(1.0, at.input("X"))

Operators that the standard defines as functions, with a body that is exact, are in `BY_BODY` and need nothing more.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onward.autodiff.emit import Emitter
from onward.autodiff.problems import Unsupported
from onward.autodiff.rule import Rule
from onward.autodiff.rules._windows import extent, reshape, reshape_target
from onward.graph.schema import schema

if TYPE_CHECKING:
    from onward.graph.builder import Value

Size = "int | Value"
Made = "Value | Sequence[Value | None]"
Function = Callable[["Lowering"], Any]


@dataclasses.dataclass(frozen=True)
class Decomposition:
    """How one operator becomes others; `kernel` says what a kernel of its own saves, where it saves much."""

    op_type: str
    function: Function | None  # None: the body in the standard
    formula: str
    kernel: str = ""


TABLE: dict[str, Decomposition] = {}
_FAMILIES = (
    "activation", "containers", "contraction", "control_flow", "convolution", "elementary", "image", "indexing",
    "layout", "linalg", "logical", "normalization", "pooling", "quantization", "random", "recurrent", "reduction",
    "regions", "resize", "signal", "standard",
)  # fmt: skip


def decomposition(op_type: str, *, kernel: str = "") -> Callable[[Function], Function]:
    """Register the decorated function as the decomposition of `op_type`; its docstring is the formula."""

    def register(function: Function) -> Function:
        _add(Decomposition(op_type, function, " ".join((function.__doc__ or "").split()), kernel))
        return function

    return register


def by_body(op_type: str, *, kernel: str = "") -> None:
    """Register an operator that the standard itself defines by others."""
    _add(Decomposition(op_type, None, "", kernel))


def _add(made: Decomposition) -> None:
    if schema(made.op_type) is None:
        return  # the installed onnx does not know it yet
    assert made.op_type not in TABLE, f"{made.op_type} has two decompositions"
    TABLE[made.op_type] = made


@functools.cache
def table() -> dict[str, Decomposition]:
    """Return every decomposition by operator."""
    for family in _FAMILIES:
        importlib.import_module(f"onward.passes.core.{family}")
    return TABLE


class Lowering(Rule):
    """The node to decompose, seen through its schema, and tools for sizes that may be known only at run time.

    A size is an int, or an int64 value of one element. Arithmetic with sizes gives an int if all of them are ints.
    """

    op: Emitter

    def __init__(self, node: ir.Node, op: Emitter) -> None:
        super().__init__(node, schema(node.op_type, node.domain, op.opset), op, frozenset())

    def rank_of(self, value: Value) -> int:
        """Return the rank.

        Raises:
            Unsupported: it is not known.
        """
        rank = self.rank(value)
        if rank is None:
            raise Unsupported(f"the rank of `{value.name}` is not known; give the model's inputs shapes")
        return rank

    def axis(self, value: Value, name: str = "axis") -> int:
        """Return an attribute that counts axes, from the front."""
        return int(self.attr(name)) % max(self.rank_of(value), 1)

    def wanted(self, name: str) -> bool:
        """Return whether the output called `name` is there."""
        return self.optional_output(name) is not None

    def dtype(self, value: Value) -> ir.DataType:
        """Return the element type.

        Raises:
            Unsupported: it is not known.
        """
        if value.dtype is None:
            raise Unsupported(f"the type of `{value.name}` is not known")
        return value.dtype

    # -- sizes -----------------------------------------------------------------------------------------------

    def size(self, value: Value, axis: int) -> int | Value:
        return extent(self, value, axis)

    def sizes(self, value: Value) -> list[int | Value]:
        return [extent(self, value, axis) for axis in range(self.rank_of(value))]

    def vector(self, parts: Sequence[int | Value]) -> Value:
        """Return sizes as one int64 vector."""
        return reshape_target(self, parts)

    def scalar(self, size: int | Value) -> Value:
        """Return a size as an int64 scalar."""
        if isinstance(size, int):
            return self.op.constant(size)
        out = self.op.Reshape(size, self.op.constant([], ir.DataType.INT64))
        out.shape = ir.Shape([])
        return out

    def reshape(self, value: Value, parts: Sequence[int | Value]) -> Value:
        """Return `value` with these sizes; one of them may be -1."""
        if any(isinstance(p, int) and p == -1 for p in parts) and any(isinstance(p, int) and p == 0 for p in parts):
            parts = [0 if isinstance(p, int) and p == -1 else p for p in parts]  # nothing to count
        out = reshape(self, value, parts)
        if all(isinstance(p, ir.Value) or p >= 0 for p in parts):
            out.shape = ir.Shape([p if isinstance(p, int) else None for p in parts])
        return out

    def count(self, size: int | Value) -> Value:
        """Return 0, 1, … up to a size, without it."""
        import numpy as np

        if isinstance(size, int):
            return self.op.constant(np.arange(size, dtype=np.int64))
        out = self.op.Range(0, self.scalar(size), 1)
        out.shape = ir.Shape([None])
        return out

    def along(self, vector: Value, axis: int, rank: int) -> Value:
        """Return a vector in a shape that broadcasts along one axis of a tensor of that rank."""
        return vector if axis == rank - 1 else self.reshape(vector, [-1, *[1] * (rank - 1 - axis)])
