"""Why a gradient cannot be given: one `Problem` per blocking node, told with the way from the parameter to the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.errors import Diagnostic, NotDifferentiable, define
from onward.graph import walk
from onward.graph.builder import Value

if TYPE_CHECKING:
    from onward.autodiff.engine import Slice

D201 = define(
    "D201",
    "no gradient rule for an operator",
    why="The operator lies between a value to differentiate by and the loss, and Onward has no rule for it.",
    fix="Freeze the parameters behind it, or add a rule with onward.register_gradient (docs/adding_a_rule.md).",
)
D202 = define(
    "D202",
    "the gradient by an input is not supported",
    why="The operator has a rule, but not for this input or this combination of attributes.",
    fix="Freeze the parameters behind it, or rewrite that part of the model as the message says.",
)
D203 = define(
    "D203",
    "no gradient through an output",
    why="The loss depends on an output of the operator that carries no gradient.",
    fix="Use a differentiable output, or freeze the parameters behind it.",
)

_LONGEST_PATH = 8  # nodes named in a message; the middle of a longer path is left out


class Unsupported(Exception):
    """Raised by a rule that cannot differentiate this particular node; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One blocking node. `within` are the If, Loop and Scan nodes around it, outermost first."""

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
    kinds = {kind_of(w) for w in sources} or {"value"}
    kind = kinds.pop() if len(kinds) == 1 else "value"
    place = f"node `{problem.node.name or problem.node.op_type}`"
    for around in reversed(problem.within):
        place += f", in `{around.name or around.op_type}` ({around.op_type})"
    if sources:
        plural = "s" if len(sources) > 1 else ""
        place += f", between {kind}{plural} {named} and {kind_of(of)} `{of.name}`"
    remedy = "add a rule (docs/adding_a_rule.md)" if problem.code == D201 else "change that part of the model"
    it = "it" if len(sources) == 1 else "them"
    if kind == "parameter":
        freeze = " ".join(f"--freeze {w.name}" for w in sources[:3])
        hint = f"freeze {it} with `{freeze}`, or {remedy}"
    else:
        hint = f"do not differentiate by {named or 'what is behind it'}, or {remedy}"
    return Diagnostic(problem.code, problem.message, place=place, found=_path(outer, of, sources[:1], part), hint=hint)


def kind_of(value: Value) -> str:
    """Return what a reader calls the value: parameter, input, output or value."""
    if value.is_initializer():
        return "parameter"
    if value.is_graph_input():
        return "input"
    return "output" if value.is_graph_output() else "value"


def _path(node: ir.Node, of: Value, sources: Sequence[Value], part: Slice) -> str:
    """Return one way from the first source through `node` to `of`, as names."""
    if not sources:
        return ""
    came_from: dict[Value, ir.Node | None] = {sources[0]: None}
    for step in part.nodes:
        if any(v in came_from for v in walk.reads(step)):
            for output in step.outputs:
                came_from.setdefault(output, step)
    goes_to: dict[Value, ir.Node | None] = {of: None}
    for step in reversed(part.nodes):
        if any(v in goes_to for v in step.outputs):
            for value in walk.reads(step):
                goes_to.setdefault(value, step)
    before: list[str] = []
    at: ir.Node | None = node
    while at is not None:
        before.append(at.name or at.op_type)
        source = next((v for v in walk.reads(at) if v in came_from), None)
        at = came_from[source] if source is not None else None
    after: list[str] = []
    at = node
    while at is not None:
        target = next((v for v in at.outputs if v in goes_to), None)
        at = goes_to[target] if target is not None else None
        if at is not None:
            after.append(at.name or at.op_type)
    names = [f"`{name}`" for name in [*reversed(before), *after]]
    if len(names) > _LONGEST_PATH:
        here = len(before) - 1
        kept = {0, 1, len(names) - 2, len(names) - 1, here - 1, here, here + 1}
        shown: list[str] = []
        for index, name in enumerate(names):
            if index in kept:
                shown.append(name)
            elif not shown or shown[-1] != "…":
                shown.append("…")
        names = shown
    return "the path " + " → ".join([f"`{sources[0].name}`", *names, f"`{of.name}`"])
