"""Remove dead nodes, unused inputs and roles; merge equal nodes; infer shapes."""

from __future__ import annotations

from onward.graph import edit, merge, shapes
from onward.model import roles
from onward.passes.base import NO_GRADIENTS, STATE_AS_INPUTS, Pass, Unit


class RemoveDeadNodes(Pass):
    """Remove every node that no output depends on."""

    requires = (NO_GRADIENTS,)  # these name tensors without an edge to them

    def run(self, unit: Unit) -> bool:
        return edit.remove_dead_nodes(unit.graph) > 0


class MergeEqualNodes(Pass):
    """Merge nodes that compute the same, such as the bias corrections of each parameter's update."""

    requires = (STATE_AS_INPUTS, NO_GRADIENTS)  # so that equal parameters are not merged

    def run(self, unit: Unit) -> bool:
        return merge.merge_equal_nodes(unit.graph)


class RemoveUnusedInputs(Pass):
    """Remove unused settings, state and constants; keep the inputs of the batch."""

    def run(self, unit: Unit) -> bool:
        graph = unit.graph
        optional = [*([] if unit.needs_batch else unit.data), *unit.settings, *unit.state]
        unused = [v for v in optional if v.is_graph_input() and not v.uses() and not v.is_graph_output()]
        for value in unused:
            graph.inputs.remove(value)
        constants = [n for n, v in graph.initializers.items() if not v.uses() and not v.is_graph_output()]
        for name in constants:
            graph.initializers.pop(name)
        return bool(unused or constants)


class InferShapes(Pass):
    """Fill in types and shapes."""

    def run(self, unit: Unit) -> bool:
        shapes.infer_shapes(unit.model)
        return True


class RestateShapesInBranches(Pass):
    """Forget what is stated about shapes inside branches of If and does not follow from the nodes."""

    def run(self, unit: Unit) -> bool:
        return shapes.restate_in_branches(unit.model)


class RemoveRoles(Pass):
    """Remove the roles of all values: the manifest of a program says what they are."""

    def run(self, unit: Unit) -> bool:
        roles.unmark_graph(unit.graph)
        return True
