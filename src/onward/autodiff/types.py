"""The type a gradient rule returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onward.graph.builder import Value

# By input name: a gradient, None if no gradient flows to the input, or a list of these for a variadic input. A rule for
# a node with subgraphs also returns pairs of a captured value and its gradient, under "captured".
Grads = Mapping[str, Value | Sequence[Value | None] | Sequence[tuple[Value, Value]] | None]
