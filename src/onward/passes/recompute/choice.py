"""Choose what runs twice: what is cheap, what patterns name, or the least that brings a step below a budget.

A choice says which nodes may run twice: those that cost at most so many bytes moved per byte of their results. Of what
the backward pass reads, the smallest set that gives all the rest is kept. Where everything may run twice, the forward
pass is cut into segments of about equal memory, at the places where the fewest bytes cross; what crosses is kept.
Recomputing what the end of the forward pass made, right after it, saves nothing: that is kept as well.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Callable, Iterator

import onnx_ir as ir

from onward.arguments import did_you_mean, nearest
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.folding import scopes_of
from onward.passes.recompute.costs import may_run_twice
from onward.passes.recompute.cut import smallest_cut
from onward.passes.recompute.settings import Recompute, amount
from onward.passes.recompute.tape import Copies, Tape, copies_for, peak

A110 = "A110"
CHEAP = 12.0
"""Bytes moved per byte of the result: element-wise operators, normalisations, softmax; products of short rows."""
_LEVELS = (4.0, CHEAP, 40.0, 200.0, math.inf)
_SEGMENTED = 40.0  # from this level on, cut into segments as well
_SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is dropped after the forward pass, and the copies that compute it again."""

    dropped: frozenset[int]
    copies: Copies
    bytes: int
    extra: float  # the cost of the copies

    @property
    def nodes(self) -> list[int]:
        return self.copies.nodes


def choose(tape: Tape, wanted: Recompute, place: str) -> Choice:
    """Return the choice for one graph.

    Raises:
        ArgumentError: a pattern matches nothing, or the budget cannot be reached; `place` is the graph.
    """
    if wanted.patterns:
        matched = _matching(tape, wanted.patterns)
        return _choice(tape, smallest_cut(tape, matched, fixed(tape)))
    if wanted.budget is None:
        return _trimmed(tape, _at_level(tape, CHEAP), None)
    return _within(tape, wanted.budget, place)


def nothing(tape: Tape) -> Choice:
    """Return the choice that keeps everything."""
    return _choice(tape, tape.residuals)


def _choice(tape: Tape, kept: set[int] | frozenset[int]) -> Choice:
    dropped = frozenset(tape.residuals - kept)
    copies = copies_for(tape, kept, dropped)
    assert all(_allowed(tape, index) for index in copies.before), "a node that must not run twice would"
    extra = sum(tape.cost[index] for index in copies.before)
    return Choice(dropped, copies, peak(tape, copies, dropped), extra)


def _allowed(tape: Tape, index: int) -> bool:
    """Return whether a node of the forward pass may run twice at all."""
    return (
        tape.forward[index]
        and may_run_twice(tape.nodes[index])
        and all(tape.known[v] and tape.known[tape.root[v]] for v in (*tape.reads[index], *tape.makes[index]))
    )


def fixed(tape: Tape) -> set[int]:
    """Return the residuals that stay: those that a body reads, and those that a node that never runs twice reads.

    A backend may replace such a node, a recurrent layer, together with the part of the backward pass that reads the
    same values.
    """
    found: set[int] = set()
    for index, node in enumerate(tape.nodes):
        found.update(tape.root[v] for v in tape.captured[index])
        if tape.forward[index] and not may_run_twice(node):
            found.update(tape.root[v] for v in tape.reads[index])
    return found & tape.residuals


def _nodes_at_level(tape: Tape, level: float) -> set[int]:
    return {
        index
        for index in range(len(tape.nodes))
        if _allowed(tape, index) and tape.cost[index] <= level * tape.made_size(index)
    }


def _at_level(tape: Tape, level: float, crossing: frozenset[int] = frozenset()) -> Choice:
    return _choice(tape, smallest_cut(tape, _nodes_at_level(tape, level), fixed(tape) | crossing))


def _crossing(tape: Tape, segments: int) -> frozenset[int]:
    """Return the roots that cross the borders of so many segments of the forward pass."""
    last_read: dict[int, int] = {}
    for index in range(len(tape.nodes)):
        if tape.forward[index]:
            last_read.update((tape.root[v], index) for v in tape.reads[index] if not tape.held[tape.root[v]])
    change = [0] * (len(tape.nodes) + 1)
    made = [0] * (len(tape.nodes) + 1)
    for root, last in last_read.items():
        change[tape.maker[root] + 1] += tape.size[root]
        change[last + 1] -= tape.size[root]
    for root in tape.residuals:
        made[tape.maker[root]] += tape.size[root]
    bytes_at = list(itertools.accumulate(change))  # that cross before each node
    done = list(itertools.accumulate(made))
    found: set[int] = set()
    for number in range(1, segments):
        low, high = ((number + shift) / segments * done[-1] for shift in (-0.4, 0.4))
        places = [i for i in range(len(tape.nodes)) if tape.forward[i] and low <= done[i] <= high]
        if places:
            border = min(places, key=lambda i: (bytes_at[i], abs(done[i] - (low + high) / 2)))
            found.update(r for r, last in last_read.items() if tape.maker[r] < border <= last)
    return frozenset(found)


def _candidates(tape: Tape) -> Iterator[Choice]:
    """Yield choices that differ, roughly from the cheapest to those that need the least memory."""
    seen: set[frozenset[int]] = set()
    for level in _LEVELS:
        for segments in (0, *(_SEGMENTS if level >= _SEGMENTED else ())):
            if segments == 0 and level == math.inf:
                continue  # the whole forward pass at once
            crossing = _crossing(tape, segments) if segments else frozenset()
            kept = frozenset(smallest_cut(tape, _nodes_at_level(tape, level), fixed(tape) | crossing))
            if kept not in seen:
                seen.add(kept)
                yield _choice(tape, kept)


def _trimmed(tape: Tape, choice: Choice, budget: int | None) -> Choice:
    """Return the choice without what it drops of the end of the forward pass, as far as the budget allows.

    Without a budget, as far as it costs no memory.
    """
    limit = choice.bytes if budget is None else budget
    ordered = sorted(choice.dropped, key=lambda root: tape.maker[root])
    best = choice

    def until(count: int) -> Choice:
        return _choice(tape, choice.copies.kept | frozenset(ordered[count:]))

    few, enough = 0, len(ordered)  # with `enough` of them dropped, the limit holds
    while few < enough:
        middle = (few + enough) // 2
        tried = until(middle)
        if tried.bytes <= limit and tried.extra <= best.extra:
            best, enough = tried, middle
        else:
            few = middle + 1
    return best


def _within(tape: Tape, budget: int, place: str) -> Choice:
    """Return the choice of the least cost that stays within the budget."""
    everything = nothing(tape)
    if everything.bytes <= budget:
        return everything
    best: Choice | None = None
    smallest = everything.bytes
    for candidate in _candidates(tape):
        smallest = min(smallest, candidate.bytes)
        if candidate.bytes <= budget and (best is None or candidate.extra < 4 * best.extra):
            tried = _trimmed(tape, candidate, budget)
            if best is None or tried.extra < best.extra:
                best = tried
    if best is None:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"a step does not fit into {amount(budget)}, whatever is recomputed",
                place=place,
                found=f"{amount(everything.bytes)} with all values kept, {amount(smallest)} with the fewest; "
                f"{amount(tape.inputs_size + tape.outputs_size)} of it are the batch, the state and the new state",
                needed=f"a budget from {amount(smallest)} on",
                hint="use a smaller batch, or an optimizer with less state",
            )
        )
    return best


def _matching(tape: Tape, patterns: tuple[str, ...]) -> set[int]:
    """Return the nodes that a pattern names, and the views between them."""
    names = {index: _names(node) for index, node in enumerate(tape.nodes) if tape.forward[index]}
    known = sorted({name for each in names.values() for name in each})
    found: set[int] = set()
    problems = []
    for pattern in patterns:
        hits = _hits(names, pattern)
        found |= hits
        if not hits:
            near = nearest(pattern.strip("*"), known)
            text = f"`{pattern}` matches no node, value, weight or module of the forward pass"
            problems.append(Diagnostic(A110, text, place="recompute=", hint=did_you_mean(near)))
    if problems:
        raise ArgumentError(problems)
    return {index for index in found if _allowed(tape, index)}


def _hits(names: dict[int, list[str]], pattern: str) -> set[int]:
    matches: Callable[[str], bool] = lambda name: fnmatch.fnmatchcase(name, pattern)  # noqa: E731
    return {index for index, each in names.items() if any(map(matches, each))}


def _names(node: ir.Node) -> list[str]:
    """Return what a pattern may call a node: its name, its results, its weights and the modules that it is in."""
    weights = [_source(v).name for v in node.inputs if v is not None and _source(v).producer() is None]
    return [n for n in (node.name, *(v.name for v in node.outputs), *weights, *scopes_of(node)) if n]


def _source(value: ir.Value) -> ir.Value:
    """Return the value that a Transpose moved, or the value itself."""
    maker = value.producer()
    moved = maker.inputs[0] if maker is not None and maker.op_type == "Transpose" else None
    return value if moved is None else moved
