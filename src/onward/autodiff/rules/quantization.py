"""Quantization. Rounding is flat, so a gradient through it is a choice: inside `straight_through()` it is 1.

The integers between QuantizeLinear and DequantizeLinear carry no gradient by themselves; DequantizeLinear hands it on
to the QuantizeLinear that made its input. The scales' gradients are exact, given that choice (learned step sizes).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onward.autodiff.engine import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, UNSUPPORTED, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.model.builder import Value
from onward.model.schema import schema

_STRAIGHT_THROUGH = contextvars.ContextVar("straight_through", default=False)


@contextlib.contextmanager
def straight_through() -> Iterator[None]:
    """Let gradients pass QuantizeLinear's rounding as if it were not there, wherever differentiation happens inside.

    Elements outside the range of the integer type get 0. Without this, a trainable value behind a QuantizeLinear is
    refused, since its true gradient is 0 almost everywhere.

    >>> from onnx import parser
    >>> from onward.autodiff.api import gradient
    >>> net = parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["" : 21]>
    ...     net (float[N] x, float s) => (float[N] y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }''')
    >>> with straight_through():
    ...     [o.name for o in gradient(net, of="y", wrt=["x", "s"]).graph.output]
    ['y', 'grad/x', 'grad/s']
    """
    token = _STRAIGHT_THROUGH.set(True)
    try:
        yield
    finally:
        _STRAIGHT_THROUGH.reset(token)


@gradient("DequantizeLinear", opset=13, integers=True, x_zero_point=NON_DIFFERENTIABLE)
def dequantize_linear(rule: Rule, dy: Value) -> Grads:
    """y = (x - x_zero_point) * x_scale, so dx_scale = sum(dy * (x - x_zero_point)) and dx = dy * x_scale."""
    op, x, scale, zero = rule.op, rule.input("x"), rule.input("x_scale"), rule.optional_input("x_zero_point")
    assert dy.dtype is not None
    grid = _Grid(rule, x)
    grads: dict[str, Value | list[tuple[Value, Value]] | None] = {"x": None}  # integers: what flows goes past them
    if rule.needs("x_scale"):
        steps = op.cast(x, dy.dtype)
        if zero is not None:
            steps = op.Sub(steps, grid.expand(zero, dy.dtype))
        grads["x_scale"] = grid.total(op.Mul(dy, steps), scale)
    if rule.needs("x"):
        dx = op.Mul(dy, grid.expand(scale, dy.dtype))
        grads["captured"] = _through_rounding(rule, x, dx)
    return dict(grads)


def _through_rounding(rule: Rule, x: Value, dx: Value) -> list[tuple[Value, Value]]:
    """Return the gradients by the inputs of the QuantizeLinear that made `x`, given the one by its steps."""
    if not _STRAIGHT_THROUGH.get():
        raise Unsupported(
            "rounding is flat, so what lies behind it has no gradient; to let gradients pass as if it were not there "
            "(straight-through), differentiate inside `with onward.straight_through():`"
        )
    node = x.producer()
    if node is None or node.op_type != "QuantizeLinear" or node.domain not in ("", "ai.onnx"):
        made = "a graph input" if node is None else f"the {node.op_type} node `{node.name}`"
        raise Unsupported(
            f"straight-through needs its integer input `{x.name}` to come directly from a QuantizeLinear, and it comes "
            f"from {made}; move that before the QuantizeLinear, or behind the DequantizeLinear"
        )
    inner = Rule(node, schema("QuantizeLinear", "", rule.op.opset), rule.op, frozenset({0, 1}))
    grads = quantize_linear(inner, dx)
    return [(inner.input(name), grad) for name, grad in grads.items() if isinstance(grad, ir.Value)]


@gradient("QuantizeLinear", opset=13, y_zero_point=NON_DIFFERENTIABLE)
def quantize_linear(rule: Rule, dy: Value) -> Grads:
    """y = clip(round(x / y_scale) + y_zero_point); straight-through: inside the range dx = dy / y_scale, outside 0.

    And dy_scale = -sum(dy * x / y_scale²) inside the range. The engine never asks: see `dequantize_linear`.
    """
    op, x, scale, zero = rule.op, rule.input("x"), rule.input("y_scale"), rule.optional_input("y_zero_point")
    dtype = x.dtype
    assert dtype is not None
    grid = _Grid(rule, x)
    step = grid.expand(scale, dtype)
    ratio = op.Div(x, step)
    low, high = _range(rule.output("y").dtype, zero)
    nearest = op.Round(ratio)
    if zero is not None:
        nearest = op.Add(nearest, grid.expand(zero, dtype))
    # The rounded value at the edge of the range is inside, as in torch.fake_quantize_per_tensor_affine.
    inside = op.cast(op.And(op.GreaterOrEqual(nearest, low), op.LessOrEqual(nearest, high)), dtype)
    dx = op.Div(op.Mul(op.cast(dy, dtype), inside), step)
    return {"x": dx, "y_scale": grid.total(op.Neg(op.Mul(dx, ratio)), scale)}


def _range(dtype: ir.DataType | None, zero: Value | None) -> tuple[float, float]:
    """Return the least and the greatest value of a quantized type."""
    if dtype is None:
        dtype = zero.dtype if zero is not None and zero.dtype is not None else ir.DataType.UINT8
    return float(dtype.min), float(dtype.max)


class _Grid:
    """How a scale lies on a tensor: one for all, one per index of an axis, or one per block of an axis."""

    def __init__(self, rule: Rule, x: Value) -> None:
        self.rule = rule
        self.x = x
        self.block = rule.attr("block_size", 0) or 0
        self.axis = rule.attr("axis", 1)

    def _kind(self, scale: Value) -> str:
        if self.block:
            return "block"
        rank = self.rule.rank(scale)
        if rank is None:
            raise Unsupported(f"the rank of the scale `{scale.name}` is not known: give it a shape")
        return "tensor" if rank == 0 or self.rule.static_shape(scale) == (1,) else "axis"

    def _position(self) -> int:
        rank = self.rule.rank(self.x)
        if rank is None:
            raise Unsupported(f"the rank of `{self.x.name}` is not known: give it a shape")
        return int(self.axis % rank)

    def expand(self, scale: Value, dtype: ir.DataType) -> Value:
        """Return a scale or zero point in `dtype`, in a form that broadcasts to the tensor."""
        op, kind, cast = self.rule.op, self._kind(scale), self.rule.op.cast(scale, dtype)
        if kind == "tensor":
            return cast
        if kind == "block":
            return op.Gather(cast, self._blocks(), axis=self._position())
        rank = self.rule.rank(self.x)
        trailing = (rank or 0) - 1 - self._position()
        return cast if trailing == 0 else op.Unsqueeze(cast, list(range(1, trailing + 1)))

    def _blocks(self) -> Value:
        """Return for each index of the axis the number of its block."""
        op, size = self.rule.op, self.rule.dim_of(self.x, self._position())
        dims = self.rule.dims(self.x)
        known = None if dims is None else dims[self._position()]
        if isinstance(known, int):
            return op.constant(np.arange(known) // self.block)
        return op.Div(op.Range(0, op.Squeeze(size, [0]), 1), self.block)

    def total(self, grad: Value, scale: Value) -> Value:
        """Return `grad`, of the shape of the tensor, summed to the shape of the scale."""
        op, kind = self.rule.op, self._kind(scale)
        if kind == "tensor":
            total = op.ReduceSum(grad, keepdims=0)
            return total if self.rule.rank(scale) == 0 else op.Reshape(total, [1])
        axis, rank = self._position(), self.rule.rank(self.x)
        assert rank is not None
        if kind == "axis":
            summed = self.rule.sum_over(grad, [a for a in range(rank) if a != axis])
            dims = self.rule.dims(self.x)
            assert dims is not None
            summed.shape = ir.Shape([dims[axis]])
            return self.rule.unbroadcast(summed, summed, scale)  # a vector may have one element at run time
        column = np.array([-1, *([1] * (rank - 1 - axis))], np.int64)
        index = op.Expand(op.Reshape(self._blocks(), column), self.rule.shape_of(self.x))
        zeros = op.cast(self.rule.zeros_like(scale), grad.dtype or ir.DataType.FLOAT)
        return op.ScatterElements(zeros, index, grad, axis=axis, reduction="add")


_DYNAMIC = (
    "its scale comes from the data themselves; for quantization-aware training use QuantizeLinear and DequantizeLinear "
    "inside `with onward.straight_through():`"
)
_INTEGER = (
    "it computes on integers; for quantization-aware training write it as DequantizeLinear, the float operator and "
    "QuantizeLinear, inside `with onward.straight_through():`"
)
declare("DynamicQuantizeLinear", opset=11, x=UNSUPPORTED(_DYNAMIC))
declare(
    "MatMulInteger",
    opset=10,
    A=NON_DIFFERENTIABLE,
    B=NON_DIFFERENTIABLE,
    a_zero_point=NON_DIFFERENTIABLE,
    b_zero_point=NON_DIFFERENTIABLE,
)
declare(
    "ConvInteger",
    opset=10,
    x=NON_DIFFERENTIABLE,
    w=NON_DIFFERENTIABLE,
    x_zero_point=NON_DIFFERENTIABLE,
    w_zero_point=NON_DIFFERENTIABLE,
)
declare(
    "QLinearMatMul",
    opset=10,
    a=NON_DIFFERENTIABLE,
    a_scale=UNSUPPORTED(_INTEGER),
    a_zero_point=NON_DIFFERENTIABLE,
    b=NON_DIFFERENTIABLE,
    b_scale=UNSUPPORTED(_INTEGER),
    b_zero_point=NON_DIFFERENTIABLE,
    y_scale=UNSUPPORTED(_INTEGER),
    y_zero_point=NON_DIFFERENTIABLE,
)
declare(
    "QLinearConv",
    opset=10,
    x=NON_DIFFERENTIABLE,
    x_scale=UNSUPPORTED(_INTEGER),
    x_zero_point=NON_DIFFERENTIABLE,
    w=NON_DIFFERENTIABLE,
    w_scale=UNSUPPORTED(_INTEGER),
    w_zero_point=NON_DIFFERENTIABLE,
    y_scale=UNSUPPORTED(_INTEGER),
    y_zero_point=NON_DIFFERENTIABLE,
    B=NON_DIFFERENTIABLE,
)
