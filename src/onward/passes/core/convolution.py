"""Convolutions: columns by Gather, then one matrix product; transposed ones the other way round."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.rules.image import _spatial_axes
from onward.graph.builder import Value
from onward.passes.core._windows import Windows, overlap_add, pad, spatial_rank
from onward.passes.core.contraction import centred
from onward.passes.core.registry import Lowering, decomposition

Size = int | Value
_COLUMNS = "the columns hold each element of X once per tap of the kernel"


@decomposition("Conv", kernel=_COLUMNS)
def conv(at: Lowering) -> Value:
    """MatMul(W as a matrix, the windows of X as columns), per group."""
    product = convolve(at, at.input("X"), at.input("W"))
    bias = at.optional_input("B")
    return product if bias is None else at.op.Add(product, _per_channel(at, bias, at.rank_of(product) - 2))


@decomposition("ConvInteger", kernel=_COLUMNS + ", as 32-bit integers")
def conv_integer(at: Lowering) -> Value:
    """Conv of (x - x_zero_point) and (w - w_zero_point) as int32."""
    zero = at.optional_input("w_zero_point")
    W = at.input("w")
    if zero is not None and at.rank(zero) == 1 and at.known_dim(zero, 0) != 1:
        zero = at.reshape(zero, [-1, *[1] * (at.rank_of(W) - 1)])
    x = centred(at, at.input("x"), at.optional_input("x_zero_point"))
    w = centred(at, W, zero)
    x.shape, w.shape = at.input("x").shape, W.shape
    return convolve(at, x, w)


def convolve(at: Lowering, X: Value, W: Value) -> Value:
    """Return the convolution without bias."""
    rank = spatial_rank(at, X, W)
    _know_rank(rank, X, W)
    kernel: list[Size] = [at.size(W, 2 + i) for i in range(rank)]
    windows = Windows(at, X, at.attr("kernel_shape") or kernel)
    group, batch = int(at.attr("group") or 1), at.size(X, 0)
    image = at.mul(*windows.counts)
    rows = at.mul(at.size(W, 1), *windows.kernel)
    outputs = at.div(at.size(W, 0), group)
    whole = all(windows.trivial(axis) for axis in range(rank))
    columns = windows.padded() if whole else windows.patches()
    right = at.reshape(columns, [batch, rows, image] if group == 1 else [batch, group, rows, image])
    left = at.reshape(W, [outputs, rows] if group == 1 else [group, outputs, rows])
    return at.reshape(at.op.MatMul(left, right), [batch, at.size(W, 0), *windows.counts])


def _know_rank(rank: int, *values: Value) -> None:
    """Give values without a shape the rank that the attributes or the other value imply."""
    for value in values:
        if value.shape is None:
            value.shape = ir.Shape([None] * (rank + 2))


def _per_channel(at: Lowering, value: Value, rank: int) -> Value:
    return at.reshape(value, [-1, *[1] * rank])


@decomposition("ConvTranspose", kernel="the columns hold each element of Y once per tap of the kernel")
def conv_transpose(at: Lowering) -> Value:
    """Columns = MatMul(W^T, X), per group; ScatterND adds them where they overlap; Slice cuts the pads off."""
    op, X, W = at.op, at.input("X"), at.input("W")
    rank = spatial_rank(at, X, W)
    _know_rank(rank, X, W)
    kernel: list[Size] = list(at.attr("kernel_shape") or [at.size(W, 2 + i) for i in range(rank)])
    strides = [int(s) for s in at.attr("strides") or [1] * rank]
    dilations = [int(d) for d in at.attr("dilations") or [1] * rank]
    extra = [int(e) for e in at.attr("output_padding") or [0] * rank]
    image: list[Size] = [at.size(X, 2 + i) for i in range(rank)]
    reach = [at.add(at.mul(at.sub(k, 1), d), 1) for k, d in zip(kernel, dilations, strict=True)]
    full = [at.add(at.mul(at.sub(i, 1), s), r) for i, s, r in zip(image, strides, reach, strict=True)]
    group, batch = int(at.attr("group") or 1), at.size(X, 0)
    channels, outputs = at.div(at.size(X, 1), group), at.size(W, 1)
    rows = at.mul(outputs, *kernel)
    left = op.Transpose(at.reshape(W, [group, channels, rows]), perm=[0, 2, 1])
    columns = op.MatMul(left, at.reshape(X, [batch, group, channels, at.mul(*image)]))
    every = at.mul(batch, group, outputs)
    whole = overlap_add(at, columns, every, kernel, image, full, strides, dilations)
    begins, ends = _cropped(at, rank, image, full, strides, extra)
    cut = pad(at, whole, [at.mul(b, -1) for b in begins], [at.mul(e, -1) for e in ends])
    sizes = [at.sub(at.sub(f, b), e) for f, b, e in zip(full, begins, ends, strict=True)]
    Y = at.reshape(cut, [batch, at.mul(group, outputs), *sizes])
    bias = at.optional_input("B")
    return Y if bias is None else op.Add(Y, _per_channel(at, bias, rank))


def _cropped(
    at: Lowering, rank: int, image: list[Size], full: list[Size], strides: list[int], extra: list[int]
) -> tuple[list[Size], list[Size]]:
    """Return how many elements are cut before and behind each axis; output_padding cuts fewer, down to adding some."""
    auto, given = at.attr("auto_pad") or "NOTSET", at.attr("output_shape")
    pads = [int(p) for p in at.attr("pads") or [0] * 2 * rank]
    begins: list[Size] = list(pads[:rank])
    ends: list[Size] = [p - e for p, e in zip(pads[rank:], extra, strict=True)]
    if auto == "VALID":
        return [0] * rank, [-e for e in extra]
    if given or auto.startswith("SAME"):
        for axis in range(rank):
            room = at.add(full[axis], extra[axis])
            wanted = int(given[-rank:][axis]) if given else at.least(at.mul(image[axis], strides[axis]), room)
            total = at.most(at.sub(room, wanted), 0)
            half = at.div(total, 2)
            # SAME_UPPER puts the larger half at the end, everything else at the start.
            begins[axis] = half if auto == "SAME_UPPER" else at.sub(total, half)
            ends[axis] = at.sub(at.sub(full[axis], begins[axis]), wanted)
    return begins, ends


@decomposition("Col2Im", kernel="ScatterND needs an index per block element")
def col2im(at: Lowering) -> Value:
    """ScatterND adds the blocks where they overlap; Slice cuts the pads off."""
    X, op = at.input("input"), at.op
    image_shape, block_shape = at.constant_input("image_shape"), at.constant_input("block_shape")
    rank = _spatial_axes(at, at.output("output"))
    strides = [int(s) for s in at.attr("strides") or [1] * rank]
    dilations = [int(d) for d in at.attr("dilations") or [1] * rank]
    pads = [int(p) for p in at.attr("pads") or [0] * 2 * rank]

    def entries(name: str, known: object) -> list[Size]:
        if known is not None:
            return [int(k) for k in known]  # type: ignore[attr-defined]
        return [op.Slice(at.input(name), [i], [i + 1], [0]) for i in range(rank)]

    sizes, kernel = entries("image_shape", image_shape), entries("block_shape", block_shape)
    full = [at.add(s, pads[i] + pads[i + rank]) for i, s in enumerate(sizes)]
    image: list[Size] = []
    for axis in range(rank):
        reach = at.add(at.mul(at.sub(kernel[axis], 1), dilations[axis]), 1)
        image.append(at.add(at.div(at.sub(full[axis], reach), strides[axis]), 1))
    batch = at.size(X, 0)
    channels = at.div(at.size(X, 1), at.mul(*kernel))
    whole = overlap_add(at, X, at.mul(batch, channels), kernel, image, full, strides, dilations)
    cut = pad(at, whole, [-p for p in pads[:rank]], [-p for p in pads[rank:]])
    return at.reshape(cut, [batch, channels, *sizes])


@decomposition("CausalConvWithState", kernel="Gather reads each element once per tap")
def causal_conv_with_state(at: Lowering) -> list[Value | None]:
    """ReduceSum(the last k positions of each step * W), with the state of earlier steps before the input."""
    op, X, W = at.op, at.input("input"), at.input("weight")
    past, bias = at.optional_input("past_state"), at.optional_input("bias")
    k, length = at.size(W, 2), at.size(X, 2)
    if past is None:
        shape = at.vector([at.size(X, 0), at.size(X, 1), at.sub(k, 1)])
        past = op.Expand(op.constant(0, at.dtype(X)), shape)
    whole = op.Concat(past, X, axis=2)
    steps = op.Add(at.reshape(at.count(length), [-1, 1]), at.count(k))
    near = op.Gather(whole, steps, axis=2)  # [batch, channels, length, k]
    Y = op.ReduceSum(op.Mul(near, W), [3], keepdims=0)
    if bias is not None:
        Y = op.Add(Y, at.reshape(bias, [-1, 1]))
    if at.attr("activation") in ("silu", "swish"):
        Y = op.Mul(Y, op.Sigmoid(Y))
    state = op.Slice(whole, at.vector([length]), at.vector([at.add(length, at.sub(k, 1))]), [2])
    return [Y, state]


@decomposition("QLinearConv", kernel=_COLUMNS + ", as 32-bit integers")
def qlinear_conv(at: Lowering) -> Value:
    """ConvInteger, plus the bias, times the scales, QuantizeLinear."""
    op = at.op
    w_zero = at.optional_input("w_zero_point")
    W = at.input("w")
    rank = at.rank_of(W) - 2
    if w_zero is not None and at.rank(w_zero) == 1 and at.known_dim(w_zero, 0) != 1:
        w_zero = at.reshape(w_zero, [-1, *[1] * (rank + 1)])
    x = centred(at, at.input("x"), at.optional_input("x_zero_point"))
    w = centred(at, W, w_zero)
    x.shape, w.shape = at.input("x").shape, W.shape
    product, bias = convolve(at, x, w), at.optional_input("B")
    if bias is not None:
        product = op.Add(product, _per_channel(at, bias, rank))
    scale = op.Mul(at.input("x_scale"), at.input("w_scale"))
    if at.known_dim(at.input("w_scale"), 0) != 1 if at.rank(at.input("w_scale")) else False:
        scale = _per_channel(at, scale, rank)
    floats = op.Mul(op.Cast(product, to=ir.DataType.FLOAT), scale)
    floats.shape = product.shape
    return op.QuantizeLinear(floats, at.input("y_scale"), at.input("y_zero_point"))
