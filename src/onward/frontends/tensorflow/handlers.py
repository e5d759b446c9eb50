"""Operators that tf2onnx does not translate, or not as a file that trains needs them: handlers for it.

Its own translations of `tf.where` and of the cross entropies are arithmetic that gives NaN or infinity where TensorFlow
gives a number: 0 · ∞ for what is not chosen, the logarithm of a probability that has vanished. It drops
`tf.stop_gradient`, lacks `Erfc` (of the exact GELU) and `L2Loss`, and loses the batch statistics of a fused batch
normalisation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from onward.frontends.tensorflow import versions
from onward.graph.schema import GRADIENT_DOMAIN

STOP = "StopGradient"


def handlers(differentiable: bool) -> dict[str, Callable[..., None]]:
    """Return the handlers by operator of TensorFlow; without `differentiable`, no gradient goes through the graph."""
    return {
        "Erfc": _erfc,
        "FusedBatchNormV3": _batch_norm,
        "L2Loss": _l2_loss,
        "SelectV2": _select,
        "SoftmaxCrossEntropyWithLogits": _cross_entropy,
        "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
        "StopGradient": _stop if differentiable else _identity,
    }


class _Remade:
    """A node of tf2onnx's graph that others replace."""

    def __init__(self, ctx: Any, node: Any) -> None:
        self.ctx, self.name, self.inputs, self.outputs = ctx, node.name, list(node.input), list(node.output)
        self.shapes, self.types = node.output_shapes, node.output_dtypes
        self.ranks = [ctx.get_rank(name) for name in self.inputs]
        self.dtype = onnx.helper.tensor_dtype_to_np_dtype(self.types[0])
        self.count = 0

    def constant(self, value: Any) -> str:
        """Return a constant."""
        self.count += 1
        return str(self.ctx.make_const(f"{self.name}/onward_{self.count}", np.asarray(value)).output[0])

    def part(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Return the result of a node."""
        return str(self.ctx.make_node(kind, list(inputs), attr=attributes).output[0])

    def result(self, kind: str, *inputs: str, domain: str = "", index: int = 0) -> None:
        """Add the node that gives a result of the old one; with the first result, the old one goes."""
        made = self.ctx.make_node(
            kind, list(inputs), shapes=[self.shapes[index]], dtypes=[self.types[index]], domain=domain
        )
        self.ctx.replace_all_inputs(self.outputs[index], made.output[0])
        if index == 0:
            self.ctx.remove_node(self.name)


def _erfc(ctx: Any, node: Any, name: str, args: Any) -> None:
    """erfc(x) = 1 - erf(x)."""
    made = _Remade(ctx, node)
    made.result("Sub", made.constant(np.ones((), made.dtype)), made.part("Erf", made.inputs[0]))


def _l2_loss(ctx: Any, node: Any, name: str, args: Any) -> None:
    """l2_loss(x) = Σ x² / 2."""
    made = _Remade(ctx, node)
    x = made.inputs[0]
    half = made.constant(np.full((), 0.5, made.dtype))
    made.result("Mul", made.part("ReduceSum", made.part("Mul", x, x), keepdims=0), half)


def _batch_norm(ctx: Any, node: Any, name: str, args: Any) -> None:
    """In training, normalise with the batch's mean μ and variance; return also μ and the unbiased variance.

    With a factor f below 1, the latter two are averages with the given ones: (1 - f)·mean + f·μ.
    """
    if not node.get_attr_value("is_training", True):
        versions.batch_norm_of_inference(ctx, node)
        return
    epsilon, factor = (
        float(node.get_attr_value(k, d)) for k, d in (("epsilon", 1e-4), ("exponential_avg_factor", 1.0))
    )
    channels_last = node.get_attr_str("data_format") in ("NHWC", "NDHWC")
    made = _Remade(ctx, node)
    x, scale, offset, *running = made.inputs
    rank = made.ranks[0]
    axes = [i for i in range(rank) if i != (rank - 1 if channels_last else 1)]
    over = made.constant(np.array(axes, np.int64))

    def wide(value: str) -> str:
        return value if channels_last else made.part("Unsqueeze", value, over)

    mean = made.part("ReduceMean", x, over, keepdims=1)
    centred = made.part("Sub", x, mean)
    variance = made.part("ReduceMean", made.part("Mul", centred, centred), over, keepdims=1)
    deviation = made.part("Sqrt", made.part("Add", variance, made.constant(np.full((), epsilon, made.dtype))))
    sizes = made.part("Gather", made.part("Shape", x), over)
    count = made.part("Cast", made.part("ReduceProd", sizes, keepdims=0), to=made.types[0])
    one = made.constant(np.ones((), made.dtype))
    least = made.part("Max", made.part("Sub", count, one), one)
    batch = [
        made.part("Squeeze", mean, over),
        made.part("Mul", made.part("Squeeze", variance, over), made.part("Div", count, least)),
    ]
    for index, (new, old) in enumerate(zip(batch, running, strict=True), start=1):
        if factor == 1.0:
            made.result("Identity", new, index=index)
            continue
        share, rest = (made.constant(np.full((), f, made.dtype)) for f in (factor, 1.0 - factor))
        made.result("Add", made.part("Mul", old, rest), made.part("Mul", new, share), index=index)
    made.result("Add", made.part("Mul", made.part("Div", centred, deviation), wide(scale)), wide(offset))


def _select(ctx: Any, node: Any, name: str, args: Any) -> None:
    made = _Remade(ctx, node)
    made.result("Where", *made.inputs)


def _cross_entropy(ctx: Any, node: Any, name: str, args: Any) -> None:
    """-Σ labels · log softmax(features) over the last axis; the second result is for TensorFlow's own gradient."""
    made = _Remade(ctx, node)
    products = made.part("Mul", made.inputs[1], made.part("LogSoftmax", made.inputs[0], axis=-1))
    made.result("Neg", made.part("ReduceSum", products, made.constant(np.array([-1], np.int64)), keepdims=0))


def _sparse_cross_entropy(ctx: Any, node: Any, name: str, args: Any) -> None:
    """-log softmax(features)[label] for each row."""
    made = _Remade(ctx, node)
    last = made.constant(np.array([-1], np.int64))
    chosen = made.part(
        "GatherElements",
        made.part("LogSoftmax", made.inputs[0], axis=-1),
        made.part("Unsqueeze", made.inputs[1], last),
        axis=1,
    )
    made.result("Neg", made.part("Squeeze", chosen, last))


def _stop(ctx: Any, node: Any, name: str, args: Any) -> None:
    made = _Remade(ctx, node)
    made.result(STOP, made.inputs[0], domain=GRADIENT_DOMAIN)


def _identity(ctx: Any, node: Any, name: str, args: Any) -> None:
    made = _Remade(ctx, node)
    made.result("Identity", made.inputs[0])
