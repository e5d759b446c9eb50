"""Quantization. Rounding is flat, so its slope is a choice: inside `straight_through()` it is 1.

The integers between QuantizeLinear and DequantizeLinear carry a floating-point gradient, with respect to the number of
steps. Given that choice, the gradients of the scales are exact (learned step sizes). QLinearConv and QLinearMatMul are
defined as a float operator between the two, and are differentiated as such.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, declare, each, gradient, through_body
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value

_STRAIGHT_THROUGH = contextvars.ContextVar("straight_through", default=False)


@contextlib.contextmanager
def straight_through() -> Iterator[None]:
    """Take the slope of QuantizeLinear's rounding as 1 in every gradient built inside the `with` block.

    Elements outside the range of the integer type get 0. Without `straight_through`, a trainable value behind a
    QuantizeLinear is refused: its true gradient is 0 almost everywhere.

    >>> from onnx import parser
    >>> from onward.compiler.derivatives import gradient
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
    grads: dict[str, Value | list[Value | None] | None] = {"x": None}
    if rule.needs("x_scale"):
        steps = op.cast(x, dy.dtype)
        if zero is not None:
            steps = op.Sub(steps, grid.expand(zero, dy.dtype))
        grads["x_scale"] = grid.total(op.Mul(dy, steps), scale)
    if rule.needs("x"):
        if not _STRAIGHT_THROUGH.get():
            raise Unsupported(
                "rounding is flat, so values behind it have no gradient; to take the slope of rounding as 1 "
                "(straight-through), differentiate inside `with onward.straight_through():`"
            )
        grads["x"] = op.Mul(dy, grid.expand(scale, dy.dtype))
    return grads


@gradient("QuantizeLinear", opset=13, integers=True, y_zero_point=NON_DIFFERENTIABLE)
def quantize_linear(rule: Rule, dy: Value) -> Grads:
    """y = clip(round(x / y_scale) + y_zero_point); straight-through: inside the range dx = dy / y_scale, outside 0.

    And dy_scale = -sum(dy * x / y_scale²) inside the range. dy is a float, though y holds integers.
    """
    dx, dscale = _through_rounding(rule, dy, rule.input("y_scale"), rule.optional_input("y_zero_point"))
    return {"x": dx, "y_scale": dscale}


@gradient("DynamicQuantizeLinear", opset=11, integers=True)
def dynamic_quantize_linear(rule: Rule, dy: Value | None, dy_scale: Value | None) -> Grads:
    """y_scale = (max(x, 0) - min(x, 0)) / 255, so dx = dy_scale / 255 at the greatest x and minus that at the least.

    y is that of QuantizeLinear with this scale, straight-through. Equal elements share evenly, as in ReduceMax. The
    zero point is a rounded integer.
    """
    op, x = rule.op, rule.input("x")
    through: Value | None = None
    if dy is not None:
        through, dscale = _through_rounding(
            rule, dy, rule.request_output("y_scale"), rule.request_output("y_zero_point")
        )
        dy_scale = dscale if dy_scale is None else op.Add(dy_scale, dscale)
    assert dy_scale is not None
    assert x.dtype is not None
    greatest = op.cast(op.And(op.Equal(x, op.ReduceMax(x, keepdims=0)), op.Greater(x, 0.0)), x.dtype)
    least = op.cast(op.And(op.Equal(x, op.ReduceMin(x, keepdims=0)), op.Less(x, 0.0)), x.dtype)
    shares = [op.Div(ends, op.Max(op.ReduceSum(ends, keepdims=0), 1.0)) for ends in (greatest, least)]
    dx = op.Mul(op.Sub(*shares), op.Div(dy_scale, 255.0))
    return {"x": dx if through is None else op.Add(through, dx)}


def _through_rounding(rule: Rule, dy: Value, scale: Value, zero: Value | None) -> tuple[Value, Value]:
    """Return the gradients of x and the scale in y = clip(round(x / scale) + zero), with slope 1 for round."""
    op, x = rule.op, rule.input("x")
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
    return dx, grid.total(op.Neg(op.Mul(dx, ratio)), scale)


def _range(dtype: ir.DataType | None, zero: Value | None) -> tuple[float, float]:
    """Return the least and the greatest value of a quantized type."""
    if dtype is None:
        dtype = zero.dtype if zero is not None and zero.dtype is not None else ir.DataType.UINT8
    return float(dtype.min), float(dtype.max)


class _Grid:
    """How scales apply to a tensor: one for all, one per index of an axis, or one per block of an axis."""

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
        """Return the number of the block of each index of the axis."""
        op, size = self.rule.op, self.rule.dim_of(self.x, self._position())
        known = self.rule.known_dim(self.x, self._position())
        if known is not None:
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


declare("MatMulInteger", opset=10, **each(NON_DIFFERENTIABLE, "A", "B", "a_zero_point", "b_zero_point"))
declare("ConvInteger", opset=10, **each(NON_DIFFERENTIABLE, "x", "w", "x_zero_point", "w_zero_point"))


def _qlinear_conv(node: ir.Node, opset: int) -> ir.Function | None:
    """Return DequantizeLinear, Conv and QuantizeLinear; the bias counts steps of x_scale * w_scale."""
    names = [p for p in ("group", "pads", "strides", "dilations", "kernel_shape", "auto_pad") if p in node.attributes]
    given = ", ".join(f"{n}: {_ATTRIBUTE_TYPES[n]} = @{n}" for n in names)
    biased = len(node.inputs) > 8 and node.inputs[8] is not None
    bias = "bs = Mul(x_scale, w_scale) bf = DequantizeLinear <axis = 0> (B, bs)" if biased else ""
    return _body(
        f"""QLinearConv <{", ".join(names)}>
        (x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B) => (y) {{
            xf = DequantizeLinear (x, x_scale, x_zero_point)
            wf = DequantizeLinear <axis = 0> (w, w_scale, w_zero_point)
            {bias}
            yf = Conv <{given}> (xf, wf{", bf" if biased else ""})
            y = QuantizeLinear (yf, y_scale, y_zero_point)
        }}""",
        opset,
    )


_ATTRIBUTE_TYPES = {"group": "int", "auto_pad": "string"} | dict.fromkeys(
    ("pads", "strides", "dilations", "kernel_shape"), "ints"
)


def _qlinear_matmul(node: ir.Node, opset: int) -> ir.Function | None:
    """Return DequantizeLinear of both inputs, MatMul and QuantizeLinear: scales per row of a and y, per column of b.

    Return None if the rank of a scale is above 1 (one scale per row of each matrix of a batch) or not known.
    """
    scales = [node.inputs[position] for position in (1, 4, 6)]
    if any(s is None or s.shape is None or len(s.shape) > 1 for s in scales):
        return None
    return _body(
        """QLinearMatMul (a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point) => (y) {
            af = DequantizeLinear <axis = -2> (a, a_scale, a_zero_point)
            bf = DequantizeLinear <axis = -1> (b, b_scale, b_zero_point)
            yf = MatMul (af, bf)
            y = QuantizeLinear <axis = -2> (yf, y_scale, y_zero_point)
        }""",
        opset,
    )


def _body(text: str, opset: int) -> ir.Function:
    return ir.serde.deserialize_function(
        onnx.parser.parse_function(f'<domain: "", opset_import: ["" : {opset}]> {text}')
    )


_MATMUL = each(NON_DIFFERENTIABLE, "a_zero_point", "b_zero_point", "y_zero_point")
through_body("QLinearMatMul", opset=10, body=_qlinear_matmul, **_MATMUL)
_CONV = each(NON_DIFFERENTIABLE, "x_zero_point", "w_zero_point", "y_zero_point", "B")
through_body("QLinearConv", opset=10, body=_qlinear_conv, **_CONV)
