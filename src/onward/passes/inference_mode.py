"""Switch the forward pass of a training step to inference mode."""

from __future__ import annotations

from onward.passes.base import Pass, Unit


class UseInferenceValues(Pass):
    """Replace the values of the training-mode forward by those of the inference graph."""

    safe_for_training = False

    def run(self, unit: Unit) -> bool:
        training = {} if unit.roles is None else unit.roles.training
        values = unit.values()
        found = [(values[new], values[old]) for new, old in training.items() if new in values and old in values]
        for new, old in found:
            new.replace_all_uses_with(old)
        return bool(found)
