"""Checks of `Gradient` nodes (rule 20): the tensors that they name, and the dependencies between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from onnx import TensorProto

from onward.check.report import Findings, listing, quote
from onward.check.types import Known
from onward.check.views import BEFORE_ALL, Model, Node, View, is_gradient, strings
from onward.errors import counted

C201 = "C201"
C202 = "C202"
C203 = "C203"
C204 = "C204"
C205 = "C205"
C206 = "C206"
C207 = "C207"
C208 = "C208"
C209 = "C209"
C210 = "C210"
C212 = "C212"
C213 = "C213"

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_VISITS = 400_000  # total number of values to visit, for all Gradient nodes

Value = tuple[View, str]  # the view that defines it, and its name


def gradient_nodes(views: Iterable[View]) -> Iterator[tuple[View, int, Node]]:
    for view in views:
        for position, node in enumerate(view.nodes):
            if is_gradient(node):
                yield view, position, node


def check_gradients(model: Model, findings: Findings, *, pedantic: bool) -> None:
    """Report Gradient nodes with wrong names, counts or dependencies; types are checked later."""
    follow = _Follower(model)
    for view, position, node in gradient_nodes(model.views()):
        xs, zs, y = strings(node, "xs"), strings(node, "zs") or [], strings(node, "y")
        place = view.node_place(position)
        if any(a.ref_attr_name for a in node.attribute if a.name in ("xs", "zs", "y")):
            continue  # the names are attributes of the surrounding function: known only at the call
        before = len(findings.found)
        if not xs:
            findings.error(C201, "the Gradient has no xs", place=place, needed="at least one name in xs")
        if not y or not y[0]:
            findings.error(C202, "the Gradient has no y", place=place, needed="the name of a tensor in y")
        if xs and y and y[0]:
            _check_counts(node, xs, zs, place, findings)
            names_found = _check_names(view, position, xs, zs, y[0], place, findings)
            if names_found and not _repeated(xs + zs):
                _check_dependencies(follow, view, position, (xs, zs, y[0]), place, pedantic, findings)
        if any(d.code in (C201, C202, C203, C204, C205, C206) for d in findings.found[before:]):
            model.mark_broken(view, position)


def _repeated(names: list[str]) -> list[str]:
    return sorted(n for n, count in Counter(names).items() if count > 1)


def _check_counts(node: Node, xs: list[str], zs: list[str], place: str, findings: Findings) -> None:
    for name in _repeated(xs + zs):
        findings.error(
            C203,
            f"the Gradient names {quote(name)} more than once",
            place=place,
            found=f"xs = {listing(xs)}; zs = {listing(zs)}",
            needed="each name once in xs and zs together",
        )
    if len(node.input) != len(xs) + len(zs):
        findings.error(
            C204,
            "the Gradient has another number of inputs than names",
            place=place,
            found=f"{counted(len(node.input), 'input')} for {counted(len(xs), 'name')} in xs and {len(zs)} in zs",
            needed=f"{counted(len(xs) + len(zs), 'input')}: the values of {listing(xs + zs)}",
        )
    else:
        for name, value in zip(xs + zs, node.input, strict=True):
            if not value:
                findings.error(C204, f"the Gradient has no input for {quote(name)}", place=place, needed="a value")
    if len(node.output) > len(xs):
        findings.error(
            C205,
            "the Gradient has more outputs than xs",
            place=place,
            found=f"{counted(len(node.output), 'output')} for {counted(len(xs), 'name')} in xs",
            needed=f"at most {counted(len(xs), 'output')}",
        )


def _check_names(
    view: View, position: int, xs: list[str], zs: list[str], y: str, place: str, findings: Findings
) -> bool:
    complete = True
    for role, names in (("xs", xs), ("zs", zs), ("y", [y])):
        for name in names:
            if name and view.lookup(name, position) is not None:
                continue
            complete = False
            later = bool(name) and view.defines(name)
            findings.error(
                C206,
                f"{quote(name)} in {role} is "
                + ("computed only after the Gradient" if later else "not a tensor of the graph"),
                place=place,
                needed="a tensor that is defined before the node",
                hint="" if later else findings.near(name, view.visible()),
            )
    return complete


class _Follower:
    """Finds the values from which a value is computed."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.visits = 0
        self.announced = False
        self.doubtful = False  # whether the last search passed through a broken node
        self.captured: dict[tuple[int, int], list[Value]] = {}  # what each Gradient's y depends on besides xs and zs

    @property
    def exhausted(self) -> bool:
        return self.visits > _VISITS

    def sources(self, view: View, position: int) -> Iterator[Value]:
        """Yield the values that a node reads, including those that its subgraphs capture."""
        stack = [(view, position)]
        while stack:
            here, index = stack.pop()
            node = here.nodes[index]
            for name in node.input:
                found = here.lookup(name, index) if name else None
                if found is not None:
                    yield found[0], name
            yield from self.captured.get((id(here), index), ())
            for child in here.children_of.get(index, ()):
                stack += [(child, i) for i in range(len(child.nodes))]
                for name in child.outputs:
                    found = child.lookup(name, len(child.nodes)) if name else None
                    if found is not None:
                        yield found[0], name

    def back(self, start: list[Value], cut: set[tuple[int, str]]) -> tuple[set[tuple[int, str]], list[Value]]:
        """Return the members of `cut` that `start` depends on, and the leaves that are not members."""
        met: set[tuple[int, str]] = set()
        leaves: list[Value] = []
        seen: set[tuple[int, str]] = set()
        followed: set[tuple[int, int]] = set()  # nodes: one with many outputs is visited once
        stack = list(start)
        self.doubtful = False
        while stack and not self.exhausted:
            view, name = stack.pop()
            key = (id(view), name)
            if key in seen:
                continue
            seen.add(key)
            self.visits += 1
            if key in cut:
                met.add(key)
                continue
            position = view.defined[name]
            if name in self._model.ambiguous or self._model.is_broken(view, position):
                self.doubtful = True
            if position == BEFORE_ALL:
                if view.parent is None:  # the inputs of a subgraph come from its node, whose inputs are visited
                    leaves.append((view, name))
            elif (id(view), position) not in followed:
                followed.add((id(view), position))
                stack.extend(self.sources(view, position))
        return met, leaves


def _check_dependencies(
    follow: _Follower,
    view: View,
    position: int,
    names: tuple[list[str], list[str], str],
    place: str,
    pedantic: bool,
    findings: Findings,
) -> None:
    xs, zs, y = names

    def value(name: str) -> Value:
        found = view.lookup(name, position)
        assert found is not None  # all names were found before
        return found[0], name

    if follow.announced:
        return
    members = {(id(v), n): n for v, n in map(value, xs + zs)}
    met, leaves = follow.back([value(y)], set(members))
    follow.captured[id(view), position] = leaves
    if follow.exhausted:
        if not follow.announced:
            findings.note(C213, "the dependencies of this Gradient and the later ones were not checked", place=place)
        follow.announced = True
        return
    doubtful = follow.doubtful
    if not _check_independence(follow, [value(n) for n in xs + zs], members, place, findings) or doubtful:
        return
    missed = [x for x in xs if (id(value(x)[0]), x) not in met]
    if missed:
        message = f"{quote(y)} does not depend on {listing(missed)}"
        fields = {"place": place, "found": f"xs = {listing(xs)}, y = {quote(y)}"}
        if len(missed) == len(xs):
            findings.error(C207, message, needed=f"a path from a tensor in xs to {quote(y)}", **fields)
        else:
            findings.warning(C207, message + ": that derivative is zero", **fields)
    if pedantic:
        others = sorted({name for _, name in leaves})
        if others:
            findings.warning(
                C212,
                f"{quote(y)} also depends on {listing(others)}, in neither xs nor zs",
                place=place,
                needed="every input and initializer that y depends on in xs or zs",
            )


def _check_independence(
    follow: _Follower, values: list[Value], members: dict[tuple[int, str], str], place: str, findings: Findings
) -> bool:
    computed = [(v, n) for v, n in values if v.defined[n] != BEFORE_ALL]
    starts = [source for v, n in computed for source in follow.sources(v, v.defined[n])]
    met, _ = follow.back(starts, set(members))
    if not met:
        return True
    for view, name in computed:  # only now, one by one, to name the dependent pair
        met, _ = follow.back(list(follow.sources(view, view.defined[name])), set(members) - {(id(view), name)})
        if met:
            findings.error(
                C208,
                f"{quote(name)} is computed from {listing(sorted(members[m] for m in met))}, which the Gradient also "
                "names",
                place=place,
                needed="tensors in xs and zs that do not depend on each other",
                hint=f"keep {quote(name)} or the tensors it is computed from, not both",
            )
    return False


def check_gradient_types(model: Model, types: Known, findings: Findings) -> None:
    """Report Gradient nodes whose tensors have the wrong type."""
    for view, position, node in gradient_nodes(types.views()):
        if model.is_broken(view, position):
            continue
        xs, zs = strings(node, "xs") or [], strings(node, "zs") or []
        place = view.node_place(position)
        for index, (name, given) in enumerate(zip(xs + zs, node.input, strict=False)):
            named = types.of(view, name, position)
            if index < len(xs) and named is not None and named.elem_type not in _FLOATS:
                findings.error(
                    C210,
                    f"the Gradient is asked for the derivative with respect to {quote(name)}, which is {named}",
                    place=place,
                    found=str(named),
                    needed="FLOAT16, FLOAT or DOUBLE",
                )
                model.mark_broken(view, position)
            actual = types.of(view, given, position)
            if given != name and named is not None and actual is not None and not actual.fits(named):
                findings.error(
                    C209,
                    f"the input {quote(given)} does not match {quote(name)}, which it replaces",
                    place=place,
                    found=f"{quote(given)} is {actual}",
                    needed=f"{named}, the type of {quote(name)}",
                )
        for y in strings(node, "y") or ():
            known = types.of(view, y, position)
            if known is not None and known.elem_type not in _FLOATS:
                findings.error(
                    C210,
                    f"the Gradient is asked for the derivative of {quote(y)}, which is {known}",
                    place=place,
                    found=str(known),
                    needed="FLOAT16, FLOAT or DOUBLE",
                )
