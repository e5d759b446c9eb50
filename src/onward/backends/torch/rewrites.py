"""The rewrites of graphs for `OnnxModule`, which owns the weights and differentiates with autograd."""

from __future__ import annotations

from collections.abc import Collection

from onward.graph import edit
from onward.model.training_model import FLOAT_TYPES, TrainingModel, differentiated, initializer_behind
from onward.passes.base import Pass, Unit


class WeightsAsInputs(Pass):
    """Turn floating-point initializers into inputs, because the module owns them."""

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

    Otherwise autograd would also differentiate with respect to the parameter there. `found` maps each value to its
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
