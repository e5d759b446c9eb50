"""Inline calls of model-local functions."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.autodiff.function_bodies import inline_call
from onward.autodiff.registry import is_own
from onward.errors import Diagnostic, ModelError
from onward.graph import walk
from onward.graph.schema import schema
from onward.passes.base import INLINED, Pass, Unit

M301 = "M301"


class InlineFunctions(Pass):
    """Replace every call of a model-local function by its body, to any depth."""

    ensures = (INLINED,)

    def run(self, unit: Unit) -> bool:
        return _inline_all(unit, ())


class InlineFunctionsWithoutRules(Pass):
    """Inline every function except those for which the user registered a gradient rule (`register_gradient`).

    Differentiation needs the calls of these functions.
    """

    def run(self, unit: Unit) -> bool:
        return _inline_all(unit, {key for key in unit.model.functions if is_own(key[1], key[0])})


def _inline_all(unit: Unit, kept: Collection[ir.OperatorIdentifier]) -> bool:
    functions = unit.model.functions
    if not functions:
        return False
    unit.names.taken |= walk.all_names(unit.graph)
    found = _inline(unit.graph, unit, kept)
    for key in [] if kept else list(functions):
        del functions[key]
    return found


def _inline(graph: walk.GraphLike, unit: Unit, kept: Collection[ir.OperatorIdentifier]) -> bool:
    model, found = unit.model, False
    queue = list(graph)
    while queue:
        node = queue.pop(0)
        for sub in walk.subgraphs(node):
            found |= _inline(sub, unit, kept)
        key = (node.domain, node.op_type, node.overload)
        function = model.functions.get(key)
        if function is not None and key not in kept:
            for domain, version in function.opset_imports.items():
                known = model.opset_imports.setdefault(domain, version)
                if known != version and domain == "":
                    _check_same_meaning(function, version, known)
            queue = inline_call(node, function, unit.names) + queue
            found = True
    return found


def _check_same_meaning(function: ir.Function, version: int, wanted: int) -> None:
    for node in function:
        if node.domain != "":
            continue
        own, new = schema(node.op_type, "", version), schema(node.op_type, "", wanted)
        if own is not None and new is not None and own.since_version != new.since_version and min(version, wanted) < 18:
            raise ModelError(
                Diagnostic(
                    M301,
                    f"function `{function.name}` uses opset {version} where the model uses {wanted}, and "
                    f"`{node.op_type}` differs between them",
                    hint="export the model with one opset for all functions",
                )
            )
