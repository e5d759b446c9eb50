"""`Call`: the node that a decomposition replaces; `decomposes`: the table of decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph import shapes
from onward.graph.builder import Builder, Value

DOMAIN = "com.microsoft"
CLASSICAL = "ai.onnx.ml"
SIMPLIFIED = "SimplifiedLayerNormalization"  # ONNX Runtime also puts it into the default domain
_END = np.array([np.iinfo(np.int64).max])


class CannotDecompose(Exception):
    """A node has no equivalent in plain operators; it stays in the graph."""


class Call:
    """One node to replace: its inputs, attributes and shapes, and a builder for its replacement."""

    def __init__(self, node: ir.Node, op: Builder, ml_version: int = 1) -> None:
        self.node, self.op, self.ml_version = node, op, ml_version
        self.weights: dict[str, Value] = {}  # by the attribute that held them
        self.mirrored: set[str] = set()  # attributes that hold the numbers twice, first negated
        self.paired: set[str] = set()  # the same, each number beside its negation
        self.clipped: set[str] = set()  # attributes whose numbers must not be negative
        self.guards: dict[str, bool] = {}  # attribute -> whether none of its numbers is negative, where it matters

    def input(self, index: int) -> Value | None:
        """Return an input, or None if it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def required(self, index: int) -> Value:
        """Return an input; raise CannotDecompose if it is absent."""
        value = self.input(index)
        if value is None:
            raise CannotDecompose(f"input {index} of {self.node.op_type} is absent")
        return value

    def attr(self, name: str, default: Any) -> Any:
        """Return an attribute as a plain value."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def size(self, value: Value, axis: int) -> int | Value:
        """Return one dimension: a number, or a 1-D value computed at run time."""
        known = shapes.dims(value)
        if known is not None and isinstance(known[axis], int):
            return known[axis]  # type: ignore[return-value]  # just tested to be an int
        axis = axis if axis >= 0 or known is None else axis + len(known)
        return self.op.Slice(self.op.Shape(value), np.array([axis]), np.array([axis + 1]) if axis != -1 else _END)

    def rank(self, value: Value) -> int:
        """Return the rank; raise CannotDecompose if it is unknown."""
        if value.shape is None:
            raise CannotDecompose(f"the rank of `{value.name}` is unknown")
        return len(value.shape)

    def range(self, size: int | Value) -> Value:
        """Return 0, 1, ... size - 1 as int64."""
        if isinstance(size, int):
            return self.op.constant(np.arange(size))
        return self.op.Range(np.array(0), self.op.Squeeze(size, np.array([0])), np.array(1))

    def shape(self, *parts: int | Value) -> Value:
        """Return a shape from numbers and 1-D values."""
        if all(isinstance(p, int) for p in parts):
            return self.op.constant(np.array(parts, np.int64))
        return self.op.Concat(*(np.array([p]) if isinstance(p, int) else p for p in parts), axis=0)


Decomposition = Callable[[Call], list[Value | None]]
TABLE: dict[tuple[str, str], Decomposition] = {}  # by domain and type


def decomposes(op_type: str, domain: str = DOMAIN) -> Callable[[Decomposition], Decomposition]:
    """Register the decorated function as the decomposition of `op_type`."""

    def register(function: Decomposition) -> Decomposition:
        TABLE[domain, op_type] = function
        return function

    return register
