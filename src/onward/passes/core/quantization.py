"""Quantisation: arithmetic, and Cast to the small types."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Value
from onward.passes.core.contraction import centred
from onward.passes.core.registry import Lowering, decomposition

FLOAT, INT32, UINT8 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.UINT8
_RANGE = {
    ir.DataType.INT2: (-2, 1), ir.DataType.UINT2: (0, 3), ir.DataType.INT4: (-8, 7), ir.DataType.UINT4: (0, 15),
    ir.DataType.INT8: (-128, 127), UINT8: (0, 255),
    ir.DataType.INT16: (-(1 << 15), (1 << 15) - 1), ir.DataType.UINT16: (0, (1 << 16) - 1),
    INT32: (-(1 << 31), (1 << 31) - 1),
}  # fmt: skip


def _spread(at: Lowering, value: Value, x: Value) -> Value:
    """Return a scale or zero point in a shape that broadcasts to `x`: a number, one per channel, or one per block."""
    rank = at.rank(value)
    if rank == 0 or (rank == 1 and at.known_dim(value, 0) == 1 and not at.attr("block_size", 0)):
        return value
    axis = at.axis(x)
    block = int(at.attr("block_size", 0) or 0)
    if not block:
        return at.along(value, axis, at.rank_of(x))
    sizes = at.sizes(value)
    apart = at.reshape(value, [*sizes[: axis + 1], 1, *sizes[axis + 1 :]])
    wide = at.op.Expand(apart, at.vector([*sizes[: axis + 1], block, *sizes[axis + 1 :]]))
    whole = at.reshape(wide, [*sizes[:axis], at.mul(sizes[axis], block), *sizes[axis + 1 :]])
    end = at.size(x, axis)
    cut = at.op.Slice(whole, [0], at.vector([end]), [axis])
    return cut


@decomposition("QuantizeLinear")
def quantize_linear(at: Lowering) -> Value:
    """Clip(Round(x / y_scale) + y_zero_point) as the type; for 8-bit and 4-bit floats, Cast(x / y_scale)."""
    op, x, zero = at.op, at.input("x"), at.optional_input("y_zero_point")
    given = at.attr("output_dtype") if "output_dtype" in at.schema.attributes else None  # type: ignore[union-attr]
    dtype = at.dtype(zero) if zero is not None else ir.DataType(given) if given else UINT8
    precision = at.attr("precision") if "precision" in at.schema.attributes else None  # type: ignore[union-attr]
    kind = ir.DataType(precision) if precision else None
    if kind is None:
        kind = at.dtype(x) if at.dtype(x).is_floating_point() else at.dtype(at.input("y_scale"))
    wide = kind if kind == ir.DataType.DOUBLE else FLOAT
    scale = op.cast(_spread(at, at.input("y_scale"), x), wide)
    scaled = op.Div(op.cast(x, wide), scale)
    if kind != wide:
        scaled = op.cast(op.cast(scaled, kind), wide)
    if dtype not in _RANGE:
        return op.Cast(scaled, to=dtype, saturate=int(at.attr("saturate", 1)))
    whole = op.Round(scaled)
    if zero is not None:
        whole = op.Add(whole, op.Cast(_spread(at, zero, x), to=wide))
    low, high = _RANGE[dtype]
    kept = op.Min(op.Max(whole, float(low)), float(high))
    return op.Cast(op.Cast(kept, to=INT32) if dtype != INT32 else kept, to=dtype)


@decomposition("DequantizeLinear")
def dequantize_linear(at: Lowering) -> Value:
    """(x - x_zero_point) * x_scale."""
    op, x, zero, scale = at.op, at.input("x"), at.optional_input("x_zero_point"), at.input("x_scale")
    kind = at.dtype(scale)
    to = at.attr("output_dtype") if at.schema is not None and "output_dtype" in at.schema.attributes else None
    dtype = ir.DataType(to) if to else kind
    if at.dtype(x).is_floating_point():
        centre = op.Cast(x, to=FLOAT)
    else:
        wide = INT32
        centre = op.Cast(x, to=wide)
        if zero is not None:
            centre = op.Sub(centre, op.Cast(_spread(at, zero, x), to=wide))
        centre = op.Cast(centre, to=FLOAT)
    centre.shape = x.shape
    narrow = FLOAT if kind not in (ir.DataType.DOUBLE,) else kind
    product = op.Mul(op.cast(centre, narrow), op.cast(_spread(at, scale, x), narrow))
    return op.cast(product, dtype)


@decomposition("QLinearMatMul", kernel="8-bit products: the integers are widened to 32 bits, four times the bytes")
def qlinear_matmul(at: Lowering) -> Value:
    """MatMul of the integers without their zero points, times the scales, QuantizeLinear."""
    op = at.op

    def rows(value: Value) -> Value:
        several = at.rank(value) == 1 and at.known_dim(value, 0) != 1
        return op.Unsqueeze(value, [-1]) if several else value

    a = centred(at, at.input("a"), rows(at.input("a_zero_point")))
    b = centred(at, at.input("b"), at.input("b_zero_point"))
    scale = op.Mul(op.Cast(rows(at.input("a_scale")), to=FLOAT), op.Cast(at.input("b_scale"), to=FLOAT))
    floats = op.Div(op.Mul(op.Cast(op.MatMul(a, b), to=FLOAT), scale), op.Cast(rows(at.input("y_scale")), to=FLOAT))
    zero = at.input("y_zero_point")
    dtype = at.dtype(zero)
    if dtype not in _RANGE:
        return op.Cast(floats, to=dtype)
    low, high = _RANGE[dtype]
    whole = op.Add(op.Round(floats), op.Cast(rows(zero), to=FLOAT))
    return op.Cast(op.Cast(op.Min(op.Max(whole, float(low)), float(high)), to=INT32), to=dtype)


@decomposition("DynamicQuantizeLinear")
def dynamic_quantize_linear(at: Lowering) -> list[Value | None]:
    """The scale of the range, with 0 in it; its zero point; QuantizeLinear. All zeros have the scale 1."""
    op, x = at.op, at.input("x")
    high = op.Max(op.ReduceMax(x, keepdims=0), 0.0)
    low = op.Min(op.ReduceMin(x, keepdims=0), 0.0)
    span = op.Div(op.Sub(high, low), 255.0)
    scale = op.Where(op.Equal(span, 0.0), 1.0, span)
    zero = op.Round(op.Min(op.Max(op.Div(op.Mul(low, -1.0), scale), 0.0), 255.0))
    moved = op.Add(op.Round(op.Div(x, scale)), zero)
    kept = op.Min(op.Max(moved, 0.0), 255.0)
    return [op.Cast(kept, to=UINT8), scale, op.Cast(zero, to=UINT8)]
