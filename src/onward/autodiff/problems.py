"""Why there is no gradient: one `Problem` per blocking node, with the path from the parameter to the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.errors import Diagnostic, NotDifferentiable, named_node
from onward.graph import walk
from onward.graph.builder import Value

if TYPE_CHECKING:
    from onward.autodiff.engine import Slice

D201 = "D201"
D202 = "D202"
D203 = "D203"

_LONGEST_PATH = 8  # nodes named in a message; the middle of a longer path is left out


class Unsupported(Exception):
    """A rule cannot differentiate this node. The message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One blocking node; `within` holds the If, Loop and Scan nodes around it, outermost first."""

    code: str
    message: str
    node: ir.Node
    value: Value | None = None
    within: tuple[ir.Node, ...] = ()


def refusal(problems: Sequence[Problem], of: Value, wrt: Sequence[Value], part: Slice) -> NotDifferentiable:
    """Return the error that lists every problem, each once, in the order of the graph."""
    position = {node: index for index, node in enumerate(part.nodes)}
    unique = dict.fromkeys(problems)
    ordered = sorted(unique, key=lambda p: position.get(p.within[0] if p.within else p.node, 0))
    return NotDifferentiable([_diagnostic(p, of, wrt, part) for p in ordered])


def _diagnostic(problem: Problem, of: Value, wrt: Sequence[Value], part: Slice) -> Diagnostic:
    outer = problem.within[0] if problem.within else problem.node
    behind = walk.ancestors([v for v in walk.reads(outer) if v in part.active])
    sources = [w for w in wrt if w in walk.reads(outer) or any(w in walk.reads(n) for n in behind)]
    named = walk.sequence_of(sources[:3]) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
    kinds = {kind_of(w) for w in sources}
    kind = kinds.pop() if len(kinds) == 1 else "value"
    place = named_node(problem.node)
    place += "".join(f", in {named_node(n)}" + f" ({n.op_type})" * bool(n.name) for n in reversed(problem.within))
    if sources:
        place += f", between {kind}{'s' if len(sources) > 1 else ''} {named} and {kind_of(of)} `{of.name}`"
    found = _path(outer, sources[0], of, part) if sources else ""
    return Diagnostic(
        problem.code, problem.message, place=place, found=found, hint=_hint(problem, sources, kind, named)
    )


def _hint(problem: Problem, sources: Sequence[Value], kind: str, named: str) -> str:
    remedy = "add a rule (docs/adding_a_rule.md)" if problem.code == D201 else "change that part of the model"
    if kind != "parameter":
        return f"do not differentiate with respect to {named or 'what is behind it'}, or {remedy}"
    freeze = ", ".join(f'"{w.name}"' for w in sources[:3])
    return f"freeze {'it' if len(sources) == 1 else 'them'} with freeze=[{freeze}], or {remedy}"


def kind_of(value: Value) -> str:
    """Return what a reader calls the value: parameter, input, output or value."""
    if value.is_initializer():
        return "parameter"
    if value.is_graph_input():
        return "input"
    return "output" if value.is_graph_output() else "value"


def _path(node: ir.Node, source: Value, of: Value, part: Slice) -> str:
    """Return one path from the source through `node` to `of`, as names."""
    before, after = _nodes_before(node, source, part), _nodes_after(node, of, part)
    names = [f"`{n.name}`" if n.name else named_node(n) for n in [*before, node, *after]]
    return "the path " + " → ".join([f"`{source.name}`", *_shortened(names, len(before)), f"`{of.name}`"])


def _nodes_before(node: ir.Node, source: Value, part: Slice) -> list[ir.Node]:
    """Return the nodes of one path from the source to `node`."""
    came_from: dict[Value, ir.Node | None] = {source: None}
    for inner in part.nodes:
        if any(v in came_from for v in walk.reads(inner)):
            for output in inner.outputs:
                came_from.setdefault(output, inner)
    path = [node]
    while (step := next((came_from[v] for v in walk.reads(path[0]) if v in came_from), None)) is not None:
        path.insert(0, step)
    return path[:-1]


def _nodes_after(node: ir.Node, of: Value, part: Slice) -> list[ir.Node]:
    """Return the nodes of one path from `node` to `of`."""
    goes_to: dict[Value, ir.Node | None] = {of: None}
    for inner in reversed(part.nodes):
        if any(v in goes_to for v in inner.outputs):
            for value in walk.reads(inner):
                goes_to.setdefault(value, inner)
    path = [node]
    while (step := next((goes_to[v] for v in path[-1].outputs if v in goes_to), None)) is not None:
        path.append(step)
    return path[1:]


def _shortened(names: list[str], here: int) -> list[str]:
    """Return the names with … for those far from both ends and from position `here`, if there are many."""
    if len(names) <= _LONGEST_PATH:
        return names
    kept = {0, 1, len(names) - 2, len(names) - 1, here - 1, here, here + 1}
    shown = [name if index in kept else "…" for index, name in enumerate(names)]
    return [name for index, name in enumerate(shown) if name != "…" or shown[index - 1] != "…"]
