"""Normalisations; those that the standard defines by others are in `standard.py`."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.graph.builder import Value
from onward.passes.core.reduction import NARROW
from onward.passes.core.registry import Lowering, decomposition


def _channels(at: Lowering, value: Value, rank: int) -> Value:
    return at.reshape(value, [-1, *[1] * (rank - 2)]) if rank > 2 else value


@decomposition("BatchNormalization")
def batch_normalization(at: Lowering) -> list[Value | None]:
    """(X - mean) / Sqrt(var + epsilon) * scale + B; in training with the statistics of the batch."""
    op, X, scale, B = at.op, at.input("X"), at.input("scale"), at.input("B")
    mean, var = at.input("input_mean"), at.input("input_var")
    rank, dtype = at.rank_of(X), at.dtype(X)
    running: list[Value | None] = []
    if at.attr("training_mode"):
        axes = [0, *range(2, rank)]
        wide = op.Cast(X, to=ir.DataType.FLOAT) if dtype in NARROW else X
        centre = op.ReduceMean(wide, axes, keepdims=1)
        centred = op.Sub(wide, centre)
        spread = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=0)
        spread.shape = ir.Shape([None])
        momentum = float(at.attr("momentum"))
        batch_mean = op.Reshape(centre, [-1])
        for old, new, name in ((mean, batch_mean, "running_mean"), (var, spread, "running_var")):
            kind = at.dtype(old)
            kept, taken = op.constant(momentum, kind), op.constant(1.0 - momentum, kind)
            mixed = op.Add(op.Mul(old, kept), op.Mul(op.cast(new, kind), taken))
            running.append(mixed if at.wanted(name) else None)
        mean, var = batch_mean, spread
    kind = at.dtype(var)
    factor = op.Div(op.cast(scale, kind), op.Sqrt(op.Add(var, op.constant(float(at.attr("epsilon")), kind))))
    factor.shape = mean.shape = ir.Shape([None])
    x = op.cast(X, kind)
    y = op.Add(
        op.Mul(op.Sub(x, _channels(at, mean, rank)), _channels(at, factor, rank)),
        _channels(at, op.cast(B, kind), rank),
    )
    return [op.cast(y, dtype), *running]


@decomposition("InstanceNormalization")
def instance_normalization(at: Lowering) -> Value:
    """(X - mean of the image) / Sqrt(its variance + epsilon) * scale + B."""
    op, X = at.op, at.input("input")
    rank, dtype = at.rank_of(X), at.dtype(X)
    axes = list(range(2, rank))
    wide = op.Cast(X, to=ir.DataType.FLOAT) if dtype in NARROW else X
    centred = op.Sub(wide, op.ReduceMean(wide, axes, keepdims=1))
    spread = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1)
    epsilon = op.constant(float(at.attr("epsilon")), at.dtype(wide))
    normal = op.cast(op.Div(centred, op.Sqrt(op.Add(spread, epsilon))), dtype)
    scale, B = (_channels(at, at.input(name), rank) for name in ("scale", "B"))
    return op.Add(op.Mul(normal, scale), B)


@decomposition("GroupNormalization")
def group_normalization(at: Lowering) -> Value:
    """Of each group of channels: (X - mean) / Sqrt(variance + epsilon), times scale + bias."""
    op, X, groups = at.op, at.input("X"), int(at.attr("num_groups"))
    rank, dtype = at.rank_of(X), at.dtype(X)
    sizes = at.sizes(X)
    wide = op.Cast(X, to=ir.DataType.FLOAT) if dtype in NARROW else X
    rows = at.reshape(
        wide, [sizes[0], groups, -1 if _positive(sizes) else at.mul(at.div(sizes[1], groups), *sizes[2:])]
    )
    centred = op.Sub(rows, op.ReduceMean(rows, [2], keepdims=1))
    spread = op.ReduceMean(op.Mul(centred, centred), [2], keepdims=1)
    epsilon = op.constant(float(at.attr("epsilon")), at.dtype(wide))
    normal = op.cast(op.Div(centred, op.Sqrt(op.Add(spread, epsilon))), dtype)
    scale, bias = at.input("scale"), at.input("bias")
    if at.op.opset < 21:  # one per group
        scale, bias = at.reshape(scale, [-1, 1]), at.reshape(bias, [-1, 1])
        return at.reshape(op.Add(op.Mul(normal, scale), bias), sizes)
    whole = at.reshape(normal, sizes)
    return op.Add(op.Mul(whole, _channels(at, scale, rank)), _channels(at, bias, rank))


def _positive(sizes: list[int | Value]) -> bool:
    return all(isinstance(s, int) and s > 0 for s in sizes)


@decomposition("LpNormalization")
def lp_normalization(at: Lowering) -> Value:
    """X / the norm along the axis; 0 where that is 0."""
    op, X = at.op, at.input("input")
    axis = at.axis(X)
    if int(at.attr("p")) == 1:
        norm = op.ReduceSum(op.Abs(X), [axis], keepdims=1)
    else:
        norm = op.Sqrt(op.ReduceSum(op.Mul(X, X), [axis], keepdims=1))
    return op.Where(op.Equal(norm, 0.0), op.Mul(X, 0.0), op.Div(X, norm))


@decomposition("MeanVarianceNormalization")
def mean_variance_normalization(at: Lowering) -> Value:
    """(X - mean) / (Sqrt(mean of X^2 - mean^2) + 1e-9), by the centred squares, which do not cancel."""
    op, X = at.op, at.input("X")
    axes = [int(a) for a in at.attr("axes") or [0, 2, 3]]
    centred = op.Sub(X, op.ReduceMean(X, axes, keepdims=1))
    spread = op.Sqrt(op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1))
    return op.Div(centred, op.Add(spread, 1e-9))


@decomposition("LayerNormalization")
def layer_normalization(at: Lowering) -> list[Value | None]:
    """(X - mean) / Sqrt(variance + epsilon) over the last axes, in the type of stash_type; times Scale + B."""
    op, X, B = at.op, at.input("X"), at.optional_input("B")
    stash, dtype = ir.DataType(int(at.attr("stash_type"))), at.dtype(X)
    axis, rank = int(at.attr("axis")), at.rank(X)
    if rank is None and axis >= 0:
        raise Unsupported(f"the rank of `{X.name}` is not known; give the model's inputs shapes")
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis - (rank or 0), 0))
    wide = op.cast(X, stash)
    mean = op.ReduceMean(wide, axes, keepdims=1)
    centred = op.Sub(wide, mean)
    spread = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1)
    inverse = op.Div(1.0, op.Sqrt(op.Add(spread, op.constant(float(at.attr("epsilon")), stash))))
    normal = op.cast(op.Mul(centred, inverse), dtype)
    Y = op.Mul(normal, at.input("Scale"))
    return [Y if B is None else op.Add(Y, B), mean, inverse]
