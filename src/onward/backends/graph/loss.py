"""The graphs of a model as a function of its weights, for a framework that owns the weights and differentiates."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from onward.autodiff.registry import is_own
from onward.backends.graph.forward import ROUNDING
from onward.compiler.compile import Compiler
from onward.compiler.program import PlainGraph
from onward.compiler.recipes import GRADIENTS, UPDATE, Recipe
from onward.graph import edit, walk
from onward.model.roles import EntryRoles
from onward.model.training_model import FLOAT_TYPES, TrainingEntry, TrainingModel, differentiated, initializer_behind
from onward.passes.base import Pass, Unit


class WeightsAsInputs(Pass):
    """Turn floating-point initializers into inputs, because the framework owns them."""

    def __init__(self, owned: Collection[str]) -> None:
        self._owned = owned

    def run(self, unit: Unit) -> bool:
        initializers = unit.graph.initializers
        found = [v for n, v in initializers.items() if n in self._owned and v.dtype in FLOAT_TYPES]
        for value in found:
            initializers.pop(value.name or "")
            value.const_value = None
            unit.graph.inputs.append(value)
            unit.state.append(value)
        return bool(found)


class ConstantsAsInputs(Pass):
    """Turn values that forward a parameter as a constant of Gradient into inputs.

    Otherwise the framework would also differentiate with respect to the parameter there. `found` maps each value to its
    parameter.
    """

    def __init__(self, model: TrainingModel) -> None:
        self.found = {
            value.name or "": parameter
            for node in model.gradient_nodes()
            for value in node.inputs[len(differentiated(node)) :]
            if value is not None and value.producer() is not None and (parameter := initializer_behind(value))
        }

    def run(self, unit: Unit) -> bool:
        cut = [n.outputs[0] for n in unit.graph if n.outputs[0].name in self.found and n.outputs[0].uses()]
        for value in cut:
            given = edit.copy_value(value)
            value.name = unit.names.unique(f"{given.name}/cut")
            value.replace_all_uses_with(given)
            unit.graph.inputs.append(given)
            unit.state.append(given)
        return bool(cut)


def forward_graph(
    model: TrainingModel, recipe: Recipe, entry: TrainingEntry | None
) -> tuple[PlainGraph, dict[str, str]]:
    """Return a recipe's graph with the weights as inputs, and the inputs that forward a weight without a gradient."""
    constants = ConstantsAsInputs(model)
    graph = Compiler(model).build(recipe.then(constants, WeightsAsInputs(model.graph.initializers)), entry)
    return graph, {n: constants.found[n] for n in graph.input_names if n in constants.found}


@dataclasses.dataclass(frozen=True)
class WrittenLoss:
    """The loss with its gradients, from the lowered Gradient node of the file."""

    step: PlainGraph
    gradients: Mapping[str, str]  # output of `step` -> parameter
    update: PlainGraph
    counters: Mapping[str, str]  # output of `update` -> state that changes independently of the batch


def written_loss(model: TrainingModel, entry: TrainingEntry, roles: EntryRoles) -> WrittenLoss:
    """Return the graphs of a loss whose backward pass is the file's own."""
    compiler = Compiler(model)
    step, update = compiler.build(GRADIENTS, entry), compiler.build(UPDATE, entry)
    left = {n for n in roles.forward_state if n not in step.replaces.values()}
    counted = {output: name for output, name in update.replaces.items() if name in left}
    return WrittenLoss(step, roles.gradients, update, counted)


def has_own_rules(model: TrainingModel, entry: TrainingEntry) -> bool:
    """Return whether the entry needs a gradient rule that the user registered; a framework does not know it."""
    return any(is_own(n.op_type, n.domain, model.opset) for n in _all_nodes(model, entry))


def rounds(model: TrainingModel, entry: TrainingEntry) -> bool:
    """Return whether the entry rounds to integers, where `onward.straight_through` chooses the gradient."""
    return any(n.op_type in ROUNDING for n in _all_nodes(model, entry))


def _all_nodes(model: TrainingModel, entry: TrainingEntry) -> Iterator[ir.Node]:
    assert entry.algorithm is not None
    places: list[walk.GraphLike] = [model.graph, entry.algorithm, *model.ir.functions.values()]
    for place in places:
        yield from walk.all_nodes(place)
