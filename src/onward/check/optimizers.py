"""Checks of `Adagrad`, `Adam` and `Momentum` nodes (rule 21), whose counts and shapes onnx does not check."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from onnx import TensorProto

from onward.check.report import Findings, listing, quote
from onward.check.types import Known, TensorType
from onward.check.views import Model, Node, View, strings
from onward.errors import counted
from onward.graph.schema import TRAINING_DOMAIN

C301 = "C301"
C302 = "C302"
C303 = "C303"
C304 = "C304"
C306 = "C306"
C307 = "C307"


@dataclasses.dataclass(frozen=True)
class _Form:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_FORMS = {
    "Adagrad": _Form(("X", "G", "H"), ("X", "H")),
    "Adam": _Form(("X", "G", "V", "H"), ("X", "V", "H")),
    "Momentum": _Form(("X", "G", "V"), ("X", "V")),
}
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


def is_optimizer(model: Model, node: Node) -> bool:
    return node.domain == TRAINING_DOMAIN and node.op_type in _FORMS and model.callee(node) is None


def _optimizers(model: Model, views: Iterable[View]) -> Iterator[tuple[View, int, Node, _Form]]:
    for view in views:
        for position, node in enumerate(view.nodes):
            if is_optimizer(model, node):
                yield view, position, node, _FORMS[node.op_type]


def check_optimizers(model: Model, findings: Findings) -> None:
    """Report optimizer nodes with wrong counts or modes; types are checked later."""
    for view, position, node, form in _optimizers(model, model.views()):
        if model.is_broken(view, position):
            continue
        before = len(findings.found)
        place = view.node_place(position)
        kinds = len(form.inputs)
        count, rest = divmod(len(node.input) - 2, kinds)
        order = "R, T, " + ", ".join(f"{k}1…{k}n" for k in form.inputs)
        if rest or count < 1:
            findings.error(
                C301,
                f"{quote(node.op_type)} has the wrong number of inputs",
                place=place,
                found=f"{counted(len(node.input), 'input')}: R, T and {counted(len(node.input) - 2, 'tensor')}",
                needed=f"2 + {kinds}n inputs: {order}",
            )
        elif len(node.output) != count * len(form.outputs):
            findings.error(
                C302,
                f"{quote(node.op_type)} of {counted(count, 'tensor')} has the wrong number of outputs",
                place=place,
                found=counted(len(node.output), "output"),
                needed=f"{count * len(form.outputs)}: " + ", ".join(f"new {k}1…{k}n" for k in form.outputs),
            )
        for index, name in enumerate(node.input):
            if not name:
                findings.error(
                    C301, f"input {index} of {quote(node.op_type)} is left out", place=place, needed=f"all of {order}"
                )
        if node.op_type == "Momentum":
            mode = strings(node, "mode")
            if mode and mode[0] not in ("standard", "nesterov"):
                findings.error(
                    C307,
                    f"Momentum has no mode {quote(mode[0])}",
                    place=place,
                    needed="standard or nesterov",
                    hint=findings.near(mode[0], ["standard", "nesterov"]),
                )
        if any(d.code in (C301, C302) for d in findings.found[before:]):
            model.mark_broken(view, position)


def check_optimizer_types(model: Model, types: Known, findings: Findings) -> None:
    """Report optimizer nodes whose tensors have the wrong type or do not match each other."""
    for view, position, node, form in _optimizers(model, types.views()):
        if model.is_broken(view, position):
            continue
        before = len(findings.found)
        known = [types.of(view, name, position) for name in node.input]
        place = view.node_place(position)
        for role, index, allowed in (("R", 0, _FLOATS), ("T", 1, (TensorProto.INT64,))):
            _check_scalar(node, role, node.input[index], known[index], allowed, place, findings)
        count = (len(node.input) - 2) // len(form.inputs)
        for tensor in range(count):
            indices = [2 + kind * count + tensor for kind in range(len(form.inputs))]
            members = [(f"{form.inputs[k]}{tensor + 1}", node.input[i], known[i]) for k, i in enumerate(indices)]
            _check_group(node, members, place, findings)
        if len(findings.found) > before:
            model.mark_broken(view, position)


def _check_scalar(
    node: Node, role: str, name: str, known: TensorType | None, allowed: tuple[int, ...], place: str, findings: Findings
) -> None:
    if known is None:
        return
    if known.elem_type not in allowed:
        findings.error(
            C304,
            f"{role} of {quote(node.op_type)}, {quote(name)}, has the wrong element type",
            place=place,
            found=str(known),
            needed="INT64" if role == "T" else "FLOAT or DOUBLE",
        )
    if known.shape is not None and any(isinstance(d, int) and d != 1 for d in known.shape):
        findings.error(
            C303,
            f"{role} of {quote(node.op_type)}, {quote(name)}, is not one number",
            place=place,
            found=str(known),
            needed="a scalar",
        )


def _check_group(node: Node, members: list[tuple[str, str, TensorType | None]], place: str, findings: Findings) -> None:
    for role, name, known in members:
        if known is not None and known.elem_type not in _FLOATS:
            findings.error(
                C304,
                f"{role} of {quote(node.op_type)}, {quote(name)}, has the wrong element type",
                place=place,
                found=str(known),
                needed="FLOAT or DOUBLE",
            )
            return
    first_role, first_name, first = members[0]
    if first is None:
        return
    different = [(r, n, k) for r, n, k in members[1:] if k is not None and not k.fits(first)]
    if different:
        findings.error(
            C306,
            f"{listing([n for _, n, _ in different])} of {quote(node.op_type)} must have the type and shape of "
            f"{quote(first_name)}",
            place=place,
            found="; ".join(f"{r} {quote(n)} is {k}" for r, n, k in different),
            needed=f"{first}, as {first_role} {quote(first_name)} has",
            hint="the inputs are grouped by kind (all X, then all G, then the states), not by tensor",
        )
