"""Operators that tf2onnx does not translate, or not as a file that trains needs them: handlers for it.

Its own translations of `tf.where` and of the cross entropies are arithmetic that gives NaN or infinity where TensorFlow
gives a number: 0 · ∞ for what is not chosen, the logarithm of a probability that has vanished. It drops
`tf.stop_gradient`, and lacks `Erfc` (of the exact GELU) and `L2Loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from onward.graph.schema import GRADIENT_DOMAIN

STOP = "StopGradient"


def handlers(differentiable: bool) -> dict[str, Callable[..., None]]:
    """Return the handlers by operator of TensorFlow; without `differentiable`, no gradient goes through the graph."""
    return {
        "Erfc": _erfc,
        "L2Loss": _l2_loss,
        "SelectV2": _select,
        "SoftmaxCrossEntropyWithLogits": _cross_entropy,
        "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
        "StopGradient": _stop if differentiable else _identity,
    }


class _Remade:
    """A node of tf2onnx's graph that is taken out, to be written with others."""

    def __init__(self, ctx: Any, node: Any) -> None:
        self.ctx, self.name, self.inputs, self.outputs = ctx, node.name, list(node.input), list(node.output)
        self.shapes, self.types = node.output_shapes, node.output_dtypes
        self.ranks = [ctx.get_rank(name) for name in self.inputs]
        self.dtype = onnx.helper.tensor_dtype_to_np_dtype(self.types[0])
        self.count = 0
        ctx.remove_node(self.name)

    def constant(self, value: Any) -> str:
        """Return a constant."""
        self.count += 1
        return str(self.ctx.make_const(f"{self.name}/onward_{self.count}", np.asarray(value)).output[0])

    def part(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Return the result of a node."""
        return str(self.ctx.make_node(kind, list(inputs), attr=attributes).output[0])

    def result(self, kind: str, *inputs: str, domain: str = "") -> None:
        """Add the node that gives the first result of the old one."""
        self.ctx.make_node(
            kind,
            list(inputs),
            outputs=self.outputs[:1],
            name=self.name,
            shapes=self.shapes[:1],
            dtypes=self.types[:1],
            domain=domain,
        )


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
