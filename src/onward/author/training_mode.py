"""Build the forward pass in training mode: batch normalisation with batch statistics, active dropout.

By the standard, a training step runs the nodes of the inference graph, and a node has only one mode. So from the first
BatchNormalization or Dropout on, the algorithm has its own copy of the forward pass over the same initializers. It
shares the nodes before that one (docs/decisions/training-mode-forward.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic, named_node
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import copy_nodes
from onward.graph.walk import all_nodes, ancestors, constant_of, reads, subgraphs
from onward.model.roles import STATISTIC, Role, mark
from onward.model.training_model import TrainingModel

A116 = "A116"

PREFIX = "train/"


@dataclasses.dataclass
class TrainingForward:
    """The nodes that the algorithm runs instead of those of the inference graph.

    `values` maps values of the inference graph to those of the training step. `statistics` maps each running statistic
    to its new value.
    """

    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    values: dict[Value, Value] = dataclasses.field(default_factory=dict)
    statistics: dict[Value, Value] = dataclasses.field(default_factory=dict)

    def value(self, inference: Value) -> Value:
        """Return the value of the training step that replaces a value of the inference graph."""
        return self.values.get(inference, inference)


def build_training_forward(
    work: TrainingModel,
    outputs: Sequence[Value],
    names: Names,
    *,
    batch_norm: str,
    unbiased: bool,
    trained: Collection[Value],
    seed: int,
) -> TrainingForward:
    """Return the training-mode forward up to `outputs`; empty where inference and training are the same.

    Raises:
        ArgumentError: a batch normalisation has to train and cannot; lists all such nodes.
    """
    reached = ancestors(outputs)
    order = [node for node in work.graph if node in reached]
    training = {node for node in order if _trains(node, batch_norm, trained)}
    _check_bodies(order, batch_norm, trained)
    forward = TrainingForward()
    op = Builder(work.opset, names, prefix=PREFIX)
    drops = 0
    for node in order:
        holds_dropout = [n for inner in subgraphs(node) for n in all_nodes(inner) if _drops(n)]
        if node in training:
            _emit_batch_norm(op, node, forward, unbiased)
        elif _drops(node):
            drops += 1
            _emit_dropout(op, node, forward, seed + drops)
        elif holds_dropout or any(v in forward.values for v in reads(node)):
            switch = op.constant(np.array(True)) if holds_dropout else None
            (copy,) = copy_nodes([node], forward.values, names=names, prefix=PREFIX)
            for old, new in zip(node.outputs, copy.outputs, strict=True):
                mark(new, Role.TRAINING, of=old.name)
            op.nodes.append(copy)
            for inner in (n for graph in subgraphs(copy) for n in all_nodes(graph) if _drops(n)):
                drops += 1
                _switch_on(inner, switch, seed + drops)
    forward.nodes = op.nodes
    for value, new in forward.statistics.items():
        new.name = names.unique(f"new/{value.name}")
        new.type, new.shape = value.type, None if value.shape is None else value.shape.copy()
        mark(value, Role.STATE, slot=STATISTIC)
    return forward


def to_inference_mode(graph: ir.Graph) -> None:
    """Switch nodes of the inference graph that an exporter left in training mode to inference mode."""
    for node in all_nodes(graph):
        if is_batch_norm(node) and node.attributes.get_int("training_mode", False):
            if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
                raise ArgumentError(
                    Diagnostic(
                        A116,
                        "other nodes read the statistics of a batch normalisation in training mode",
                        place=node_name(node),
                        hint="export the model in inference mode; make_trainable adds the training mode itself",
                    )
                )
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
            node.resize_outputs(1)
        elif node.op_type == "Dropout" and node.domain in ("", "ai.onnx") and len(node.inputs) > 2:
            mode = constant_of(node.inputs[2])
            if mode is not None and bool(mode):
                node.replace_input_with(2, None)
                node.resize_inputs(2)


def node_name(node: ir.Node) -> str:
    """Return a description of a node: its operator and its name, or its place among those of its operator."""
    return f"{node.op_type} `{node.name}`" if node.name else named_node(node)


def is_batch_norm(node: ir.Node) -> bool:
    return node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx")


def _trains(node: ir.Node, batch_norm: str, trained: Collection[Value]) -> bool:
    if not is_batch_norm(node) or batch_norm == "freeze":
        return False
    return batch_norm == "always" or any(_source(v) in trained for v in node.inputs[1:3])


def _source(value: Value | None) -> Value | None:
    """Return the initializer behind a chain of Identity nodes."""
    while value is not None and (node := value.producer()) is not None and node.op_type == "Identity":
        value = node.inputs[0]
    return value


def _drops(node: ir.Node) -> bool:
    """Return whether this is a Dropout that drops anything in training."""
    if node.op_type != "Dropout" or node.domain not in ("", "ai.onnx"):
        return False
    ratio = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return ratio is None or float(ratio) > 0.0


def _check_bodies(order: Sequence[ir.Node], batch_norm: str, trained: Collection[Value]) -> None:
    problems = [
        Diagnostic(
            A116,
            "a batch normalisation inside a body cannot train",
            place=f"{node_name(inner)}, in the body of {node_name(node)}",
            hint='pass batch_norm="freeze"',
        )
        for node in order
        for graph in subgraphs(node)
        for inner in all_nodes(graph)
        if _trains(inner, batch_norm, trained)
    ]
    problems += [
        Diagnostic(
            A116,
            "the running statistics of a batch normalisation are computed, not stored",
            place=node_name(node),
            found=f"`{value.name}`, which {node_name(node_before)} computes",
            hint='pass batch_norm="freeze"',
        )
        for node in order
        if _trains(node, batch_norm, trained)
        for value in (_source(v) for v in node.inputs[3:5])
        if value is not None and (node_before := value.producer()) is not None
    ]
    if problems:
        raise ArgumentError(problems)


def _emit_batch_norm(op: Builder, node: ir.Node, forward: TrainingForward, unbiased: bool) -> None:
    values = [None if v is None else forward.value(v) for v in node.inputs]
    mean, variance = _source(node.inputs[3]), _source(node.inputs[4])
    assert mean is not None
    assert variance is not None
    epsilon, momentum = node.attributes.get_float("epsilon", 1e-5), node.attributes.get_float("momentum", 0.9)
    Y, new_mean, new_variance = op.multi(
        "BatchNormalization",
        values[0], values[1], values[2], mean, variance,
        epsilon=epsilon, momentum=momentum, training_mode=1, outputs=3,
        name=node.name or None,
    )  # fmt: skip
    result = node.outputs[0]
    Y.name = op.names.unique(PREFIX + (result.name or "Y"))
    mark(Y, Role.TRAINING, of=result.name)
    Y.type, Y.shape = result.type, None if result.shape is None else result.shape.copy()
    if unbiased:
        new_variance = _unbiased(op, values[0], variance, new_variance, momentum)
    forward.values[result] = Y
    for old, new in ((mean, new_mean), (variance, new_variance)):
        if old in forward.statistics:
            # A normalisation that is used twice updates its statistics twice, in sequence:
            # m·earlier + (1 - m)·batch, where new = m·old + (1 - m)·batch.
            new = op.Add(new, op.Mul(op.Sub(forward.statistics[old], old), momentum))
        forward.statistics[old] = new


def _unbiased(op: Builder, X: Value | None, old: Value, new: Value, momentum: float) -> Value:
    """m·old + (new - m·old) · n / (n - 1), with n the number of values per channel."""
    count = op.Div(op.Size(X), op.Gather(op.Shape(X), 1, axis=0))
    ratio = op.Div(op.CastLike(count, old), op.CastLike(op.Max(op.Sub(count, 1), 1), old))
    kept = op.Mul(old, momentum)
    result: Value = op.Add(kept, op.Mul(op.Sub(new, kept), ratio))
    return result


def _emit_dropout(op: Builder, node: ir.Node, forward: TrainingForward, seed: int) -> None:
    data = node.inputs[0]
    assert data is not None
    ratio = forward.value(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    ratio = op.constant(0.5) if ratio is None else ratio
    made = op.call(
        "Dropout",
        [forward.value(data), ratio, op.constant(np.array(True))],
        outputs=len(node.outputs),
        seed=seed,
        name=node.name or None,
    )
    for old, new in zip(node.outputs, made, strict=True):
        new.name = op.names.unique(PREFIX + (old.name or "dropped"))
        mark(new, Role.TRAINING, of=old.name)
        new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        forward.values[old] = new


def _switch_on(node: ir.Node, switch: Value | None, seed: int) -> None:
    node.resize_inputs(3)
    node.replace_input_with(2, switch)
    node.attributes["seed"] = ir.AttrInt64("seed", seed)


__all__ = ["PREFIX", "TrainingForward", "build_training_forward", "is_batch_norm", "to_inference_mode"]
