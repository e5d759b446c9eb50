"""The type a gradient rule returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onward.graph.builder import Value

# By input name: a gradient, None for "none flows here", or a list of them for a variadic input. A rule for a node with
# subgraphs returns under "captured" the pairs of a captured value and its gradient.
Grads = Mapping[str, Value | Sequence[Value | None] | Sequence[tuple[Value, Value]] | None]
