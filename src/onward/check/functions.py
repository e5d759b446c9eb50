"""Checks of model-local functions: existence, recursion, size and opsets (rule 18)."""

from __future__ import annotations

from collections import Counter

from onward.check.report import Findings, listing, quote
from onward.check.safety import C507
from onward.check.views import (
    OFFICIAL_DOMAINS,
    FunctionKey,
    Model,
    View,
    domain_of,
    domain_text,
    function_key,
    function_text,
    known_opset,
)
from onward.graph.schema import schema

C118 = "C118"
C144 = "C144"
C145 = "C145"
C146 = "C146"
C508 = "C508"

MAX_EXPANDED_NODES = 1_000_000
MAX_CALL_DEPTH = 128


def check_functions(model: Model, findings: Findings) -> None:
    """Report missing names, recursion, excessive expansion and opset conflicts of the model's functions."""
    _check_identity(model, findings)
    calls = {function_key(body.proto): _calls(model, body) for body in model.bodies}
    order = _check_recursion(model, calls, findings)
    if order is not None:
        _check_expansion(model, calls, order, findings)
    for body in model.bodies:
        _check_opsets(model, body, findings)


def _check_identity(model: Model, findings: Findings) -> None:
    seen: set[FunctionKey] = set()
    for body in model.bodies:
        key = function_key(body.proto)
        if not body.proto.name or not key[0]:
            what = "name" if not body.proto.name else "custom domain"
            findings.error(C118, f"the function has no {what}", place=body.place)
        if key in seen:
            findings.error(
                C118,
                f"the function {function_text(key)} is defined twice",
                place=body.place,
                needed="one function for each domain, name and overload",
            )
        seen.add(key)
        attributes = [*body.proto.attribute, *(a.name for a in body.proto.attribute_proto)]
        for name in sorted(n for n, count in Counter(attributes).items() if count > 1):
            findings.error(C118, f"the function declares its attribute {quote(name)} twice", place=body.place)
    version = model.proto.ir_version
    for needed, what, users in (
        (8, "model-local functions", list(model.bodies)),
        (9, "attribute defaults of functions", [b for b in model.bodies if b.proto.attribute_proto]),
        (10, "overloads of functions", [b for b in model.bodies if b.proto.overload]),
    ):
        if users and 0 < version < needed:
            findings.error(
                C146,
                f"the model uses {what}, which its IR version does not have",
                place=users[0].place,
                found=f"ir_version {version}",
                needed=f"ir_version {needed} or above",
            )


def _calls(model: Model, view: View) -> dict[FunctionKey, int]:
    """Return the functions that a graph and its subgraphs call, and how often."""
    counts: dict[FunctionKey, int] = {}
    for inner in view.walk():
        for node in inner.nodes:
            key = model.callee(node)
            if key is not None:
                counts[key] = counts.get(key, 0) + 1
    return counts


def _check_recursion(
    model: Model, calls: dict[FunctionKey, dict[FunctionKey, int]], findings: Findings
) -> list[FunctionKey] | None:
    """Return the functions, callees first; report recursion and return None if there is any."""
    waiting = {key: len(called) for key, called in calls.items()}
    callers: dict[FunctionKey, list[FunctionKey]] = {key: [] for key in calls}
    for key, called in calls.items():
        for other in called:
            callers[other].append(key)
    order: list[FunctionKey] = []
    ready = [key for key, count in waiting.items() if count == 0]
    while ready:
        key = ready.pop()
        order.append(key)
        for caller in callers[key]:
            waiting[caller] -= 1
            if waiting[caller] == 0:
                ready.append(caller)
    if len(order) == len(calls):
        return order
    model.expandable = False
    stuck = set(calls) - set(order)
    cycle = _cycle(calls, stuck)
    findings.error(
        C144,
        f"the function {function_text(cycle[0])} calls itself",
        place=next(b.place for b in model.bodies if function_key(b.proto) == cycle[0]),
        found=" → ".join(function_text(k) for k in [*cycle[:8], cycle[0]]),
        needed="functions that do not call themselves",
        hint="write the repetition as a Loop",
    )
    return None


def _cycle(calls: dict[FunctionKey, dict[FunctionKey, int]], stuck: set[FunctionKey]) -> list[FunctionKey]:
    key = min(stuck)
    path: list[FunctionKey] = []
    seen: dict[FunctionKey, int] = {}
    while key not in seen:
        seen[key] = len(path)
        path.append(key)
        key = next(k for k in calls[key] if k in stuck)
    return path[seen[key] :]


def _check_expansion(
    model: Model, calls: dict[FunctionKey, dict[FunctionKey, int]], order: list[FunctionKey], findings: Findings
) -> None:
    sizes: dict[FunctionKey, int] = {}
    depths: dict[FunctionKey, int] = {}
    own = {function_key(b.proto): sum(len(v.nodes) for v in b.walk()) for b in model.bodies}
    for key in order:
        sizes[key] = own[key] + sum(n * sizes[k] for k, n in calls[key].items())
        depths[key] = 1 + max((depths[k] for k in calls[key]), default=0)
    literal = expanded = 0
    for top in model.tops():
        if not top.is_function:
            nodes = sum(len(v.nodes) for v in top.walk())
            literal += nodes
            expanded += nodes + sum(n * sizes[k] for k, n in _calls(model, top).items())
    if expanded > MAX_EXPANDED_NODES and expanded > literal:
        model.expandable = False
        text = f"{expanded:,}" if expanded < 10**15 else f"about 2^{expanded.bit_length() - 1}"
        findings.error(
            C508,
            f"the model has {text} nodes once its functions are expanded",
            place="functions",
            found=f"{literal:,} nodes as stored, {text} expanded",
            needed=f"at most {MAX_EXPANDED_NODES:,}",
        )
    if depths and max(depths.values()) > MAX_CALL_DEPTH:
        model.expandable = False
        findings.error(
            C507,
            f"functions call each other more than {MAX_CALL_DEPTH} deep",
            place="functions",
            found=f"{max(depths.values())} calls inside each other",
            needed=f"at most {MAX_CALL_DEPTH}",
        )


def _check_opsets(model: Model, body: View, findings: Findings) -> None:
    """Report operators that the function's opset and the model's opset define differently."""
    conflicts: dict[str, set[str]] = {}
    for inner in body.walk():
        for node in inner.nodes:
            domain = domain_of(node.domain)
            own, shared = body.opsets.get(domain), model.opsets.get(domain)
            if own is None or shared is None or own == shared or domain not in OFFICIAL_DOMAINS:
                continue
            if model.callee(node) is not None:
                continue
            first = schema(node.op_type, domain, known_opset(domain, own))
            second = schema(node.op_type, domain, known_opset(domain, shared))
            if first is not None and (second is None or first.since_version != second.since_version):
                conflicts.setdefault(domain, set()).add(node.op_type)
    for domain, operators in conflicts.items():
        findings.error(
            C145,
            f"the function and the model import different versions of {domain_text(domain)}",
            place=body.place,
            found=f"{body.opsets[domain]} in the function, {model.opsets[domain]} in the model; they define "
            f"{listing(sorted(operators))} differently",
            needed="the same version in both",
        )


def function_hint(model: Model, key: FunctionKey, findings: Findings) -> str:
    """Return a hint for a call that matches no function."""
    overloads = model.overloads.get(key[:2])
    if overloads:
        return f"the function has the overloads {listing([o or '(none)' for o in overloads])}"
    return findings.near(key[1], model.function_names.get(key[0], ()))
