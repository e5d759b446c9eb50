"""Lower `Gradient` nodes to plain operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.autodiff import rules as rules  # importing the package registers every rule
from onward.autodiff.forms import answering
from onward.autodiff.lowering import lower_model
from onward.autodiff.profile import lowering_for
from onward.autodiff.registry import is_own
from onward.graph import walk
from onward.graph.edit import remove_dead_nodes
from onward.graph.walk import ancestors
from onward.model.training_model import is_gradient
from onward.passes.base import NO_GRADIENTS, Pass, Unit


class KeepNeededGradients(Pass):
    """Remove gradients, and other nodes, that no output of the graph needs.

    A Gradient node refers to tensors by name; these tensors are kept.
    """

    def run(self, unit: Unit) -> bool:
        if NO_GRADIENTS in unit.facts:
            return False  # `RemoveDeadNodes` removes what no output needs
        values = unit.values()
        needed = ancestors(unit.graph.outputs)
        while True:
            named = [
                values[name]
                for outer in needed
                for node in (outer, *(n for body in walk.subgraphs(outer) for n in walk.all_nodes(body)))
                if is_gradient(node)
                for key in ("xs", "zs", "y")
                for name in _names(node.attributes, key)
                if name in values
            ]
            more = ancestors(named) - needed
            if not more:
                break
            needed |= more
        return remove_dead_nodes(unit.graph, [n for n in unit.graph if n not in needed]) > 0


class LowerGradients(Pass):
    """Replace every Gradient node of the graph, of functions and of algorithms by plain operators."""

    ensures = (NO_GRADIENTS,)

    def run(self, unit: Unit) -> bool:
        unit.gradients |= _gradients(unit)
        entries = unit.training.entries
        with lowering_for(unit.profile), answering(unit.forms):
            return lower_model(unit.model, [e.algorithm for e in entries if e.algorithm is not None]) > 0


def _names(attributes: Any, key: str) -> Sequence[str]:
    if key not in attributes:
        return ()
    return (attributes[key].as_string(),) if key == "y" else attributes[key].as_strings()


def _gradients(unit: Unit) -> dict[str, tuple[str, str] | None]:
    """Return gradient -> (y, x) for the Gradient nodes of the graph, or None where autograd would not find the same.

    It would not where a node evaluates the graph at another point, differentiates with respect to a computed value, or
    uses a rule that the user registered.
    """
    found: dict[str, tuple[str, str] | None] = {}
    state = {v.name for v in unit.state}
    own = any(is_own(n.op_type, n.domain, unit.opset) for n in walk.all_nodes(unit.graph))
    for node in unit.graph:
        if not is_gradient(node):
            continue
        xs, (y,) = _names(node.attributes, "xs"), _names(node.attributes, "y") or ("",)
        given = zip(node.inputs, [*xs, *_names(node.attributes, "zs")], strict=False)
        plain = not own and all(v is not None and v.name == name and v.producer() is None for v, name in given)
        for value, x in zip(node.outputs, xs, strict=False):
            if value.name:
                found[value.name] = (y, x) if plain and x in state else None
    return found
