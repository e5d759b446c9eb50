"""The builder of backward graphs, which makes each node only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Names, Operand, Value
from onward.graph.schema import schema

# Two equal nodes of these types draw different numbers.
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


class Cache:
    """The nodes made in one graph so far; `find` searches the graphs around it too."""

    def __init__(self, outer: Cache | None = None) -> None:
        self.outer = outer
        self.nodes: dict[tuple[Any, ...], tuple[Value, ...]] = {}
        self.constants: dict[tuple[Any, ...], Value] = {}

    def find(self, key: tuple[Any, ...]) -> tuple[Value, ...] | None:
        cache: Cache | None = self
        while cache is not None:
            if key in cache.nodes:
                return cache.nodes[key]
            cache = cache.outer
        return None


class Emitter(Builder):
    """A `Builder` that shares equal nodes and constants with every other emitter over the same `Cache`."""

    def __init__(self, opset: int, names: Names, cache: Cache | None = None, prefix: str = "grad/") -> None:
        super().__init__(opset, names, prefix)
        self.cache = cache if cache is not None else Cache()
        self._constants = self.cache.constants

    def inner(self, prefix: str) -> Emitter:
        """Return an emitter for a subgraph of a node that is made next."""
        return Emitter(self.opset, self.names, Cache(self.cache), prefix)

    def call(
        self,
        op_type: str,
        operands: Sequence[Operand],
        *,
        domain: str = "",
        outputs: int = 1,
        name: str | None = None,
        overload: str = "",
        **attributes: Any,
    ) -> tuple[Value, ...]:
        known = schema(op_type, domain, self.opset if domain == "" else None)
        values = self._operands(op_type, known, operands)
        given = {k: v for k, v in attributes.items() if v is not None}
        if op_type in RANDOM or any(isinstance(v, ir.Graph) for v in given.values()):
            key = None
        else:
            plain = tuple(sorted((k, _plain(v)) for k, v in given.items()))
            key = (op_type, domain, overload, outputs, tuple(values), plain)
            found = self.cache.find(key)
            if found is not None:
                return found
        made = super().call(op_type, values, domain=domain, outputs=outputs, name=name, overload=overload, **attributes)
        if key is not None:
            self.cache.nodes[key] = made
        return made


def subgraph_input(op: Builder, name: str, type_: ir.TypeProtocol | None, shape: ir.Shape | None = None) -> Value:
    """Return a new input for a subgraph of a node that `op` makes next."""
    return ir.Value(name=op.names.unique(f"{op.prefix}{name}"), type=type_, shape=shape)


def _plain(value: Any) -> Any:
    """Return a hashable stand-in for an attribute."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, list | tuple):
        return tuple(_plain(v) for v in value)
    if isinstance(value, ir.DataType):
        return int(value)
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, int | float | str | bool | bytes) else id(value)
