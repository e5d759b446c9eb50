"""Normalizations. One formula carries most of them (`_standardized`): x̂ = (x - mean) * inv, over some axes.

If the forward node can output the statistics, the rules request them instead of computing them again.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value

Axes = Value | np.ndarray


def _mean(rule: Rule, value: Value, axes: Axes) -> Value:
    return rule.op.ReduceMean(value, axes, keepdims=1)


def _statistics(rule: Rule, X: Value, axes: Axes, epsilon: float) -> tuple[Value, Value]:
    """Return X - mean and 1 / √(variance + epsilon) over `axes`."""
    op = rule.op
    centered = op.Sub(X, _mean(rule, X, axes))
    variance = _mean(rule, op.Mul(centered, centered), axes)
    return centered, op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))


def _standardized(rule: Rule, dN: Value, N: Value, inverse: Value, axes: Axes) -> Value:
    """N = (X - mean) * inverse, so dX = inverse * (dN - mean(dN) - N * mean(dN * N))."""
    op = rule.op
    pulled = op.Mul(N, _mean(rule, op.Mul(dN, N), axes))
    return op.Mul(inverse, op.Sub(op.Sub(dN, _mean(rule, dN, axes)), pulled))


class _Channels:
    """A tensor [N, C, ...] as three axes where its rank is unknown, and per-channel vectors that broadcast to it."""

    def __init__(self, rule: Rule, X: Value) -> None:
        self.rule = rule
        self.X = X
        self.rank = rule.rank(X)
        if self.rank is not None and self.rank < 2:
            raise Unsupported(
                f"its input has {self.rank} dimension; give it [N, C, ...], for example with an Unsqueeze before"
            )

    def flat(self, value: Value) -> Value:
        """Return a tensor of the shape of X, as [N, C, all others] if the rank is unknown."""
        if self.rank is not None:
            return value
        op = self.rule.op
        # Not [0, 0, -1]: of an empty batch nothing tells what -1 is.
        others = op.ReduceProd(op.Shape(self.X, start=2), keepdims=1)
        return op.Reshape(value, op.Concat(op.Shape(self.X, start=0, end=2), others, axis=0), allowzero=1)

    def back(self, value: Value) -> Value:
        return value if self.rank is not None else self.rule.reshape_like(value, self.X)

    def column(self, vector: Value) -> Value:
        """Return a vector [C] as [C, 1, ...], which broadcasts to X."""
        spatial = 1 if self.rank is None else self.rank - 2
        return vector if spatial == 0 else self.rule.op.Unsqueeze(vector, list(range(1, spatial + 1)))

    @property
    def axes(self) -> np.ndarray:
        """All axes but the channel's."""
        return np.array([0, *range(2, 3 if self.rank is None else self.rank)], np.int64)

    def total(self, value: Value) -> Value:
        """Return the sum over all axes but the channel's: a vector [C]."""
        return self.rule.op.ReduceSum(value, self.axes, keepdims=0)


# -- BatchNormalization ----------------------------------------------------------------------------------------------


@gradient("BatchNormalization", opset=15)
def batch_normalization(rule: Rule, dY: Value | None, drunning_mean: Value | None, drunning_var: Value | None) -> Grads:
    """Y = scale * x̂ + B per channel; x̂ = (X - mean) / √(var + epsilon) with the given or, in training, the batch's.

    running_mean = momentum * input_mean + (1 - momentum) * mean in training, and the same for var.
    """
    if rule.attr("training_mode"):
        return _batch_normalization_training(rule, dY, drunning_mean, drunning_var)
    assert dY is not None
    op, channels = rule.op, _Channels(rule, rule.input("X"))
    X, dY, scale = channels.flat(rule.input("X")), channels.flat(dY), rule.input("scale")
    wide = _wide_type(rule, rule.input("X"))
    assert dY.dtype is not None
    mean, var = op.cast(rule.input("input_mean"), wide), op.cast(rule.input("input_var"), wide)
    inverse = op.Reciprocal(op.Sqrt(op.Add(var, rule.attr("epsilon"))))
    slope = op.Mul(op.cast(scale, wide), inverse)
    grads: dict[str, Value | None] = {"X": channels.back(op.Mul(dY, channels.column(op.cast(slope, dY.dtype))))}
    wide_dY = op.cast(dY, wide) if any(rule.needs(n) for n in ("scale", "B", "input_mean", "input_var")) else dY
    if rule.needs("B") or rule.needs("input_mean"):
        dB = channels.total(wide_dY)
        grads |= {"B": dB, "input_mean": op.Neg(op.Mul(dB, slope))}
    if rule.needs("scale") or rule.needs("input_var"):
        centered = op.Sub(op.cast(X, wide), channels.column(mean))
        dscale = op.Mul(channels.total(op.Mul(wide_dY, centered)), inverse)
        # d(var + epsilon)^-½ = -½ inverse³
        grads |= {"scale": dscale, "input_var": op.Mul(op.Mul(dscale, op.Mul(slope, inverse)), -0.5)}
    return grads


def _batch_normalization_training(
    rule: Rule, dY: Value | None, drunning_mean: Value | None, drunning_var: Value | None
) -> Grads:
    op, channels = rule.op, _Channels(rule, rule.input("X"))
    wide, momentum = _wide_type(rule, rule.input("X")), rule.attr("momentum")
    X = op.cast(channels.flat(rule.input("X")), wide)
    centered = op.Sub(X, _mean(rule, X, channels.axes))
    deviation = op.Sqrt(op.Add(_mean(rule, op.Mul(centered, centered), channels.axes), rule.attr("epsilon")))
    # An output without a gradient contributes nothing.
    grads: dict[str, Value | None] = dict.fromkeys(("scale", "B", "input_mean", "input_var"))
    terms: list[Value] = []
    if dY is not None:
        # dX = scale/deviation·(dY - mean(dY) - centered·mean(dY·centered)/deviation²): the two means are dB and dscale
        # again, so four passes over the batch remain. Sums keep their axes, so they broadcast.
        dY = op.cast(channels.flat(dY), wide)
        dB = op.ReduceSum(dY, channels.axes, keepdims=1)
        dscale = op.Div(op.ReduceSum(op.Mul(dY, centered), channels.axes, keepdims=1), deviation)
        grads |= {"B": op.Reshape(dB, [-1]), "scale": op.Reshape(dscale, [-1])}
        offset = _per_element(rule, channels, dB)
        tilt = _per_element(rule, channels, op.Div(dscale, deviation))
        slope = op.Div(channels.column(op.cast(rule.input("scale"), wide)), deviation)
        terms.append(op.Mul(op.Sub(op.Sub(dY, offset), op.Mul(centered, tilt)), slope))
    # mean spreads 1/n over the batch, var spreads 2 (X - mean)/n.
    if drunning_mean is not None:
        grads["input_mean"] = op.Mul(drunning_mean, momentum)
        terms.append(channels.column(_per_element(rule, channels, drunning_mean, 1.0 - momentum)))
    if drunning_var is not None:
        grads["input_var"] = op.Mul(drunning_var, momentum)
        share = channels.column(_per_element(rule, channels, drunning_var, 2.0 * (1.0 - momentum)))
        terms.append(op.Mul(centered, share))
    dX = _add_all(rule, terms)
    if dY is None and drunning_var is None:
        dX = op.Expand(dX, op.Shape(X) if channels.rank is None else rule.shape_of(channels.X))
    grads["X"] = channels.back(dX)
    return grads


def _add_all(rule: Rule, terms: list[Value]) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = rule.op.Add(total, term)
    return total


def _per_element(rule: Rule, channels: _Channels, grad: Value, factor: float = 1.0) -> Value:
    """Return grad, one number per channel, times factor / (elements per channel)."""
    op, X, wide = rule.op, channels.X, _wide_type(rule, channels.X)
    grad, static, channel = op.cast(grad, wide), rule.static_shape(X), rule.known_dim(rule.input("scale"), 0)
    if static is not None:
        count = int(np.prod([d for i, d in enumerate(static) if i != 1]))
        return op.Mul(grad, factor / max(count, 1))
    size = max(channel, 1) if channel is not None else op.Max(op.Size(rule.input("scale")), 1)
    share = op.Div(grad, op.cast(op.Div(op.Size(X), size), wide))
    return share if factor == 1.0 else op.Mul(share, factor)


# -- over the inner axes ---------------------------------------------------------------------------------------------


@gradient("InstanceNormalization", opset=6)
def instance_normalization(rule: Rule, doutput: Value) -> Grads:
    """output = scale * x̂ + B per channel, x̂ standardized over the spatial axes of each image and channel."""
    channels = _Channels(rule, rule.input("input"))
    wide = _wide_type(rule, rule.input("input"))
    X = rule.op.cast(channels.flat(rule.input("input")), wide)
    dY = rule.op.cast(channels.flat(doutput), wide)
    axes = np.array(range(2, 3 if channels.rank is None else channels.rank), np.int64)
    centered, inverse = _statistics(rule, X, axes, rule.attr("epsilon"))
    N = rule.op.Mul(centered, inverse)
    dN = rule.op.Mul(dY, channels.column(rule.op.cast(rule.input("scale"), wide)))
    return {
        "input": channels.back(_standardized(rule, dN, N, inverse, axes)),
        "scale": channels.total(rule.op.Mul(dY, N)),
        "B": channels.total(dY),
    }


@gradient("LayerNormalization", opset=17)
def layer_normalization(rule: Rule, dY: Value | None, dMean: Value | None, dInvStdDev: Value | None) -> Grads:
    """Y = Scale * x̂ + B, x̂ = (X - Mean) * InvStdDev, standardized over the axes from `axis` on."""
    op, X = rule.op, rule.input("X")
    axes = _inner_axes(rule, X)
    wide = _wide_type(rule, X)
    XW = op.cast(X, wide)
    stash = ir.DataType(rule.attr("stash_type", 1))
    if stash == wide != ir.DataType.DOUBLE:  # the standard has no statistics in double
        mean, inverse = rule.request_output("Mean"), rule.request_output("InvStdDev")
        _stashed(rule, mean, X, stash)
        _stashed(rule, inverse, X, stash)
        centered = op.Sub(XW, mean)
    else:
        # The saved statistics are float32 (stash_type) although X is float64: not enough digits to reuse.
        centered, inverse = _statistics(rule, XW, axes, rule.attr("epsilon"))
    N = op.Mul(centered, inverse)
    grads: dict[str, Value | None] = {}
    terms: list[Value] = []
    if dY is not None:
        scale, bias = rule.input("Scale"), rule.optional_input("B")
        wide_dY = op.cast(dY, wide)
        if rule.needs("Scale"):
            grads["Scale"] = rule.unbroadcast(op.Mul(wide_dY, N), X, scale)
        if bias is not None and rule.needs("B"):
            grads["B"] = rule.unbroadcast(wide_dY, X, bias)
        terms.append(_standardized(rule, op.Mul(wide_dY, op.cast(scale, wide)), N, inverse, axes))
    # Mean spreads 1/n; InvStdDev = (variance + epsilon)^-½ spreads -InvStdDev² * x̂/n. Both are means over the axes.
    through: Value | None = None
    if dMean is not None:
        through = op.cast(dMean, wide)
    if dInvStdDev is not None:
        pulled = op.Neg(op.Mul(op.Mul(op.cast(dInvStdDev, wide), op.Mul(inverse, inverse)), N))
        through = pulled if through is None else op.Add(through, pulled)
    if through is not None:
        through = op.Div(through, _count(rule, X, axes, inverse, wide))
        only_mean = dY is None and dInvStdDev is None
        terms.append(op.Expand(through, rule.shape_of(X)) if only_mean else through)
    grads["X"] = _add_all(rule, terms)
    return grads


def _stashed(rule: Rule, value: Value, X: Value, dtype: ir.DataType) -> None:
    """Set the type of a requested statistic and, if it is known, its shape: that of X with ones from `axis` on."""
    value.type = ir.TensorType(dtype)
    dims = rule.dims(X)
    if value.shape is None and dims is not None:
        start = rule.attr("axis", -1) % len(dims)
        value.shape = ir.Shape([d if i < start else 1 for i, d in enumerate(dims)])


def _wide_type(rule: Rule, X: Value) -> ir.DataType:
    """Return the type to compute in: that of X, or for half precision stash_type (float32 by default)."""
    if X.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return ir.DataType(rule.attr("stash_type", 1))
    return X.dtype or ir.DataType.FLOAT


def _inner_axes(rule: Rule, X: Value) -> Axes:
    axis, rank = rule.attr("axis", -1), rule.rank(X)
    if axis < 0:
        return np.arange(axis, 0)
    if rank is not None:
        return np.arange(axis, rank)
    return rule.op.Range(axis, rule.op.Size(rule.op.Shape(X)), 1)


def _count(rule: Rule, X: Value, axes: Axes, reduced: Value, dtype: ir.DataType) -> Value | float:
    """Return the number of elements of X per element of `reduced`."""
    known = rule.known_size(X, [int(a) for a in axes]) if isinstance(axes, np.ndarray) else None
    if known is not None:
        return float(known)
    op = rule.op
    return op.cast(op.Div(op.Size(X), op.Max(op.Size(reduced), 1)), dtype)


@gradient("RMSNormalization", opset=23)
def rms_normalization(rule: Rule, dY: Value) -> Grads:
    """Y = scale * x̂, x̂ = X * inv with inv = 1/√(mean(X²) + epsilon), so dX = inv * (dx̂ - x̂ * mean(dx̂ * x̂))."""
    op, X, scale = rule.op, rule.input("X"), rule.input("scale")
    axes, wide = _inner_axes(rule, X), _wide_type(rule, X)
    XW, wide_dY = op.cast(X, wide), op.cast(dY, wide)
    inverse = op.Reciprocal(op.Sqrt(op.Add(_mean(rule, op.Mul(XW, XW), axes), rule.attr("epsilon"))))
    N = op.Mul(XW, inverse)
    grads: dict[str, Value | None] = {}
    if rule.needs("scale"):
        grads["scale"] = rule.unbroadcast(op.Mul(wide_dY, N), X, scale)
    dN = op.Mul(wide_dY, op.cast(scale, wide))
    grads["X"] = op.Mul(inverse, op.Sub(dN, op.Mul(N, _mean(rule, op.Mul(dN, N), axes))))
    return grads


@gradient("GroupNormalization", opset=18)
def group_normalization_18(rule: Rule, dY: Value) -> Grads:
    """Y = scale[g] * x̂ + bias[g] per group g of channels, x̂ standardized over each group of each image."""
    return _group_normalization(rule, dY, per_channel=False)


@gradient("GroupNormalization", opset=21)
def group_normalization(rule: Rule, dY: Value) -> Grads:
    """Y = scale[c] * x̂ + bias[c] per channel c, x̂ standardized over each group of channels of each image."""
    return _group_normalization(rule, dY, per_channel=True)


def _group_normalization(rule: Rule, dY: Value, *, per_channel: bool) -> Grads:
    op, X, scale = rule.op, rule.input("X"), rule.input("scale")
    wide, groups = _wide_type(rule, X), rule.attr("num_groups")
    inner, tail = _known_product(rule, X, 2), _known_product(rule, X, 1)
    by_group = np.array([0, groups, -1 if tail is None else tail // groups], np.int64)
    axes = np.array([2], np.int64)
    centered, inverse = _statistics(rule, op.Reshape(op.cast(X, wide), by_group), axes, rule.attr("epsilon"))
    N = op.Mul(centered, inverse)
    slope, wide_dY = op.Unsqueeze(op.cast(scale, wide), [1]), op.cast(dY, wide)
    if per_channel:
        # The same numbers as [N, C, -1], for sums per channel.
        wide_dY = op.Reshape(wide_dY, np.array([0, 0, -1 if inner is None else inner], np.int64))
        dN = op.Reshape(op.Mul(wide_dY, slope), by_group)
        if inner and tail is not None:
            N_here = op.Reshape(N, np.array([0, tail // inner, inner], np.int64))
        else:
            N_here = op.Reshape(N, op.Shape(wide_dY))
    else:
        wide_dY = op.Reshape(wide_dY, by_group)
        dN = op.Mul(wide_dY, slope)
        N_here = N
    over = np.array([0, 2], np.int64)
    dX = _standardized(rule, dN, N, inverse, axes)
    return {
        "X": rule.reshape_like(dX, X),
        "scale": op.ReduceSum(op.Mul(wide_dY, N_here), over, keepdims=0),
        "bias": op.ReduceSum(wide_dY, over, keepdims=0),
    }


def _known_product(rule: Rule, X: Value, start: int) -> int | None:
    """Return the product of the dimensions from `start` on, if they are known."""
    rank = rule.rank(X)
    return None if rank is None else rule.known_size(X, range(start, rank))


# -- others ----------------------------------------------------------------------------------------------------------


@gradient("MeanVarianceNormalization", opset=13)
def mean_variance_normalization(rule: Rule, dY: Value) -> Grads:
    """Y = (X - mean) / (std + 1e-9), so dX = (dY - mean(dY)) / (std + 1e-9) - Y * mean(dY * Y) / std."""
    op, X = rule.op, rule.input("X")
    axes = np.array(rule.attr("axes", [0, 2, 3]), np.int64)
    centered = op.Sub(X, _mean(rule, X, axes))
    std = op.Sqrt(_mean(rule, op.Mul(centered, centered), axes))
    # Not the output: the standard's body has the variance as E[X²] - E[X]², which rounding may make negative.
    Y = op.Div(centered, op.Add(std, 1e-9))
    first = op.Div(op.Sub(dY, _mean(rule, dY, axes)), op.Add(std, 1e-9))
    # Where all elements are equal, std is 0, Y is 0, and so is this term.
    assert std.dtype is not None
    safe = op.Add(std, op.cast(op.Equal(std, 0.0), std.dtype))
    pulled = op.Mul(Y, op.Div(_mean(rule, op.Mul(dY, Y), axes), safe))
    return {"X": op.Sub(first, pulled)}


@gradient("LpNormalization", opset=1)
def lp_normalization(rule: Rule, doutput: Value) -> Grads:
    """output = X / ‖X‖, so dinput = (doutput - d‖X‖/dX * sum(doutput * output)) / ‖X‖; 0 where ‖X‖ is."""
    op, X, Y = rule.op, rule.input("input"), rule.output("output")
    axes = np.array([rule.attr("axis", -1)], np.int64)
    first = rule.attr("p", 2) == 1
    norm = op.ReduceL1(X, axes, keepdims=1) if first else op.ReduceL2(X, axes, keepdims=1)
    assert norm.dtype is not None
    zero = op.cast(op.Equal(norm, 0.0), norm.dtype)
    inverse = op.Div(op.Sub(1.0, zero), op.Add(norm, zero))
    slope = op.Sign(X) if first else Y
    along = op.ReduceSum(op.Mul(doutput, Y), axes, keepdims=1)
    return {"input": op.Mul(op.Sub(doutput, op.Mul(slope, along)), inverse)}


@gradient("LRN", opset=13)
def lrn(rule: Rule, dY: Value) -> Grads:
    """Y = X * D^-beta with D = bias + alpha/size * (sum of X² over a window of channels).

    So dX = dY * D^-beta - 2 * alpha * beta / size * X * (sum over the mirrored window of dY * X * D^(-beta - 1)).
    """
    op, channels = rule.op, _Channels(rule, rule.input("X"))
    X = op.Reshape(rule.input("X"), [0, 0, -1]) if channels.rank != 3 else rule.input("X")
    dY = op.Reshape(dY, [0, 0, -1]) if channels.rank != 3 else dY
    size, alpha, beta = rule.attr("size"), rule.attr("alpha"), rule.attr("beta")
    band = _band(rule, rule.input("X"), (size - 1) // 2, size // 2)
    D = op.Add(op.Mul(op.MatMul(band, op.Mul(X, X)), alpha / size), rule.attr("bias"))
    power = op.Pow(D, -beta)
    inner = op.Div(op.Mul(op.Mul(dY, X), power), D)
    mirrored = op.MatMul(op.Transpose(band, perm=[1, 0]), inner)
    pulled = op.Mul(op.Mul(X, mirrored), 2.0 * alpha * beta / size)
    return {"X": rule.reshape_like(op.Sub(op.Mul(dY, power), pulled), rule.input("X"))}


def _band(rule: Rule, X: Value, before: int, after: int) -> Value:
    """Return the matrix [C, C] whose row c is 1 for the channels c - before ... c + after."""
    op, count, dtype = rule.op, rule.known_dim(X, 1), X.dtype
    assert dtype is not None
    if count is not None:
        offset = np.arange(count) - np.arange(count)[:, None]
        return op.constant(((offset >= -before) & (offset <= after)).astype(np.float64), dtype)
    channel = op.Range(0, op.Squeeze(rule.dim_of(X, 1), [0]), 1)
    distance = op.Sub(channel, op.Unsqueeze(channel, [1]))
    return op.cast(op.And(op.GreaterOrEqual(distance, -before), op.LessOrEqual(distance, after)), dtype)
