"""The forward pass as training runs it: batch normalisation with batch statistics, dropout that drops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onward.model.builder import Names, Value
from onward.model.graphs import captured, subgraphs
from onward.model.training_model import TrainingModel


@dataclasses.dataclass
class TrainingForward:
    """Nodes that the algorithm runs instead of the inference graph's, and what stands for what."""

    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    values: dict[Value, Value] = dataclasses.field(default_factory=dict)
    statistics: dict[Value, Value] = dataclasses.field(default_factory=dict)

    def value(self, inference: Value) -> Value:
        """Return what stands for a value of the inference graph in a training step."""
        return self.values.get(inference, inference)

    @staticmethod
    def captured(node: ir.Node) -> list[Value]:
        """Return the outer values that a node's bodies read."""
        return [v for graph in subgraphs(node) for v in captured(graph)]


def build_training_forward(
    work: TrainingModel,
    outputs: Sequence[Value],
    names: Names,
    *,
    batch_norm: str,
    unbiased: bool,
    trained: Sequence[Value],
) -> TrainingForward:
    """Return the training-mode forward up to `outputs`."""
    return TrainingForward()
