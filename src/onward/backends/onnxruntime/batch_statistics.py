"""Let BatchNormalization output the batch statistics, which the backward pass would recompute.

The operator has no output for them. With momentum 0, however, its new running statistics *are* those of the batch; the
actual running statistics are then a sum of two vectors. That saves three passes over the layer's input.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onward.graph import edit, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes


@dataclasses.dataclass(frozen=True)
class _Recomputed:
    """The statistics that the backward pass recomputes, with the axes of X."""

    mean: Value
    variance: Value
    old_mean: Value  # the running statistics before the step, in memory that ONNX Runtime does not overwrite
    old_variance: Value


class ShareBatchStatistics(Pass):
    """Compute the statistics of a batch once, where the backward pass recomputes them."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "BatchNormalization", _share)


def _find_recomputed(node: ir.Node) -> _Recomputed | None:
    """Return mean(X) and mean((X - mean(X))²) over all axes but the channels', if the graph has both."""
    X = node.inputs[0]
    rank = len(X.shape) if X is not None and X.shape is not None else 0
    if X is None or rank < 2:
        return None
    # what the backward pass reads: X, or X after it was kept in 16 bits
    read = next((v for v in (X, *_widened(X)) if _mean_of(v, rank) is not None), X)
    mean = _mean_of(read, rank)
    centered = None if mean is None else _reader(read, "Sub", (read, mean))
    square = None if centered is None else _reader(centered, "Mul", (centered, centered))
    variance = None if square is None else _mean_of(square, rank)
    old_mean, old_variance = _original(node.inputs[3]), _original(node.inputs[4])
    if mean is None or variance is None or old_mean is None or old_variance is None:
        return None
    return _Recomputed(mean, variance, old_mean, old_variance)


def _widened(X: Value) -> list[Value]:
    """Return the values that the backward pass reads instead of X, where it was stored in 16 bits."""
    before = X.producer()
    tied = before.inputs[0] if before is not None and before.op_type == "Reshape" else None
    kept = [X] if tied is None else [X, tied]
    casts = [use.node.outputs[0] for value in kept for use in value.uses() if use.node.op_type == "Cast"]
    wide = [use.node.outputs[0] for narrow in casts for use in narrow.uses() if use.node.op_type == "Cast"]
    return [value for value in wide if walk.unrounded(value) in kept]


def _original(value: Value | None) -> Value | None:
    """Return the value that `ProtectRunningStatistics` copied, because the operator writes into the copy."""
    outer = None if value is None else value.producer()
    inner = None if outer is None or outer.inputs[0] is None else outer.inputs[0].producer()
    if outer is None or inner is None or (inner.op_type, outer.op_type) not in (("Neg", "Neg"), ("Mul", "Div")):
        return None
    return inner.inputs[0]


def _reader(value: Value, op_type: str, inputs: tuple[Value, ...]) -> Value | None:
    for use in value.uses():
        if use.node.op_type == op_type and tuple(use.node.inputs) == inputs:
            return use.node.outputs[0]
    return None


def _mean_of(value: Value, rank: int) -> Value | None:
    for use in value.uses():
        node = use.node
        if node.op_type == "ReduceMean" and node.attributes.get_int("keepdims", 1) == 1 and len(node.inputs) == 2:
            axes = walk.constant_of(node.inputs[1])
            if axes is not None and np.array_equal(np.sort(axes % rank), [0, *range(2, rank)]):
                return node.outputs[0]
    return None


def _share(node: ir.Node, op: Builder) -> bool:
    X, recomputed = node.inputs[0], _find_recomputed(node)
    if recomputed is None or X is None or X.shape is None or node.attributes.get_int("training_mode", 0) != 1:
        return False
    momentum = node.attributes.get_float("momentum", 0.9)
    Y, mean, variance = op.call(
        "BatchNormalization",
        node.inputs,
        outputs=3,
        epsilon=node.attributes.get_float("epsilon", 1e-5),
        momentum=0.0,
        training_mode=1,
    )
    spread = [0, *range(2, len(X.shape))]
    replaced = [(node.outputs[0], Y)]
    for old, new, running, value in (
        (recomputed.old_mean, mean, node.outputs[1:2], recomputed.mean),
        (recomputed.old_variance, variance, node.outputs[2:3], recomputed.variance),
    ):
        if running and (running[0].uses() or running[0].is_graph_output()):
            replaced.append((running[0], op.Add(op.Mul(old, momentum), op.Mul(new, 1.0 - momentum))))
        replaced.append((value, op.Unsqueeze(new, spread)))
    assert node.graph is not None
    node.graph.insert_before(node, op.nodes)
    for before, after in replaced:
        edit.take_place(before, after)
    return True
