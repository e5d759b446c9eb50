"""Attention and rotary embedding of `com.microsoft`."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Value
from onward.upgrade.microsoft.call import Call, CannotDecompose, decomposes

_END = np.array([np.iinfo(np.int64).max])


@decomposes("Attention")
def attention(call: Call) -> list[Value | None]:
    """output = softmax(scale Q K^T + mask) V with Q, K, V = input weights + bias, split into heads."""
    op, past = call.op, call.input(4)
    if call.attr("do_rotary", 0) or call.attr("past_present_share_buffer", 0) or call.input(6) is not None:
        raise CannotDecompose("a rotary or shared cache")
    joined = op.MatMul(call.required(0), call.required(1))
    bias = call.input(2)
    if bias is not None:
        joined = op.Add(joined, bias)
    sizes = call.attr("qkv_hidden_sizes", None)
    if sizes:
        parts = op.multi("Split", joined, np.array(sizes), outputs=3, axis=-1)
    else:
        parts = op.multi("Split", joined, outputs=3, axis=-1, num_outputs=3 if op.opset >= 18 else None)
    count = int(call.attr("num_heads", 1))
    q, k, v = (in_heads(op, part, count) for part in parts)
    if past is not None:
        k = op.Concat(op.Gather(past, np.array(0), axis=0), k, axis=2)
        v = op.Concat(op.Gather(past, np.array(1), axis=0), v, axis=2)
    scale = call.attr("scale", 0.0) or _scale(call, q, _head_size(call, joined, count, sizes))
    mask = _padding(call, call.input(3), k)
    result = _attend(call, q, k, v, [mask, call.input(5)], scale, causal=bool(call.attr("unidirectional", 0)))
    lead = np.array([0])
    present = op.Concat(op.Unsqueeze(k, lead), op.Unsqueeze(v, lead), axis=0)
    return [result, present]


@decomposes("MultiHeadAttention")
def multi_head_attention(call: Call) -> list[Value | None]:
    """output = softmax(scale Q K^T + mask) V with bias added to the inputs, split into heads."""
    op, query, key, value = call.op, call.required(0), call.required(1), call.required(2)
    if call.rank(query) != 3 or call.rank(key) not in (3, 4) or call.input(8) is not None or call.input(9) is not None:
        raise CannotDecompose("packed inputs or a shared cache")
    bias, separate = call.input(3), call.rank(key) == 4
    if bias is not None:
        if separate:
            raise CannotDecompose("a bias for keys that are already split into heads")
        width = call.shape(call.size(query, -1))
        twice = op.Mul(width, np.array([2]))
        query = op.Add(query, op.Slice(bias, np.array([0]), width))
        key = op.Add(key, op.Slice(bias, width, twice))
        value = op.Add(value, op.Slice(bias, twice, _END))
    count = int(call.attr("num_heads", 1))
    q = in_heads(op, query, count)
    k, v = (key, value) if separate else (in_heads(op, key, count), in_heads(op, value, count))
    past_key, past_value = call.input(6), call.input(7)
    if past_key is not None and past_value is not None:
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    size = call.size(call.required(0), -1)
    scale = call.attr("scale", 0.0) or _scale(call, q, size // count if isinstance(size, int) else None)
    mask = _padding(call, call.input(4), k)
    result = _attend(call, q, k, v, [mask, call.input(5)], scale, causal=bool(call.attr("unidirectional", 0)))
    return [result, k, v]


def in_heads(op: Builder, value: Value, count: int) -> Value:
    """Return [N, heads, S, size] from [N, S, heads * size]."""
    return op.Transpose(op.Reshape(value, np.array([0, 0, count, -1])), perm=[0, 2, 1, 3])


def _head_size(call: Call, joined: Value, count: int, sizes: list[int] | None) -> int | None:
    if sizes:
        return int(sizes[0]) // count
    width = call.size(call.required(1), 1)
    return width // 3 // count if isinstance(width, int) else None


def _scale(call: Call, q: Value, size: int | None) -> float | Value:
    if size is not None:
        return 1.0 / math.sqrt(size)
    op = call.op
    width = op.Squeeze(op.Slice(op.Shape(q), np.array([3]), np.array([4])), np.array([0]))
    return op.Reciprocal(op.Sqrt(op.CastLike(width, q) if op.opset >= 15 else op.Cast(width, to=ir.DataType.FLOAT)))


def _padding(call: Call, mask: Value | None, k: Value) -> Value | None:
    """Return the mask to add to the scores: `mask_filter_value` where a key is padding (0 in `mask`)."""
    if mask is None:
        return None
    op, rank = call.op, call.rank(mask)
    if rank == 1:
        batch, length = call.size(call.required(0), 0), call.size(mask, 0)
        if isinstance(batch, int) and isinstance(length, int) and batch != length:
            raise CannotDecompose("a mask of start and end positions")
        total = op.Slice(op.Shape(k), np.array([2]), np.array([3]))
        places = op.Cast(call.range(total), to=ir.DataType.INT32)
        real = op.Less(places, op.Unsqueeze(op.Cast(mask, to=ir.DataType.INT32), np.array([1])))
        axes = [1, 2]
    elif rank in (2, 3):
        real = op.Cast(mask, to=ir.DataType.BOOL)
        axes = [1, 2] if rank == 2 else [1]
    else:
        raise CannotDecompose(f"a mask of rank {rank}")
    dtype = k.dtype or ir.DataType.FLOAT
    filter_value = op.constant(float(call.attr("mask_filter_value", -10000.0)), dtype)
    return op.Unsqueeze(op.Where(real, op.constant(0.0, dtype), filter_value), np.array(axes))


def _attend(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    biases: list[Value | None],
    scale: float | Value,
    *,
    causal: bool,
) -> Value:
    op = call.op
    scores = op.Mul(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), scale)
    for bias in biases:
        if bias is not None:
            scores = op.Add(scores, bias)
    if causal:
        queries = op.Slice(op.Shape(q), np.array([2]), np.array([3]))
        keys = op.Slice(op.Shape(k), np.array([2]), np.array([3]))
        last = op.Add(op.Unsqueeze(call.range(queries), np.array([1])), op.Sub(keys, queries))
        dtype = q.dtype or ir.DataType.FLOAT
        lowest = op.constant(float(np.finfo(dtype.numpy()).min), dtype)
        scores = op.Where(op.LessOrEqual(call.range(keys), last), scores, lowest)
    weighted = op.MatMul(op.Softmax(scores, axis=-1), v)
    return op.Reshape(op.Transpose(weighted, perm=[0, 2, 1, 3]), np.array([0, 0, -1]))


@decomposes("RotaryEmbedding")
def rotary_embedding(call: Call) -> list[Value | None]:
    """output = input with each pair of coordinates rotated by the angle of its position."""
    op, x, positions = call.op, call.required(0), call.required(1)
    if call.attr("is_packed_batching", 0):
        raise CannotDecompose("packed batches")
    packed = call.rank(x) == 3
    half = call.shape(call.size(call.required(2), 1))
    partial = bool(call.attr("rotary_embedding_dim", 0))
    if packed:
        count = int(call.attr("num_heads", 0))
        if partial and not count:
            raise CannotDecompose("num_heads is needed with rotary_embedding_dim")
        parts = [0, 0, count, -1] if count else [0, 0, -1, op.Mul(half, np.array([2]))]
        value = op.Reshape(x, call.shape(*parts))
    else:
        value = x
    if call.rank(positions) == 1:
        positions = op.Add(call.range(call.size(x, 1 if packed else 2)), positions)
        places = op.Unsqueeze(positions, np.array([0]))
    else:
        places = positions
    heads = np.array([2 if packed else 1])
    scale = float(call.attr("scale", 1.0))
    cos, sin = (op.Unsqueeze(op.Gather(call.required(i), places, axis=0), heads) for i in (2, 3))
    result = rotate(op, value, cos, sin, half, bool(call.attr("interleaved", 0)), partial=partial)
    if packed:
        result = op.Reshape(result, np.array([0, 0, -1]))
    return [result if scale == 1.0 else op.Mul(result, scale)]


def rotate(
    op: Builder, x: Value, cos: Value, sin: Value, half: Value, interleaved: bool, *, partial: bool = True
) -> Value:
    """Return `x` with pairs of its first 2 `half` coordinates turned; with `partial` it may have more than these."""
    start, last, step = np.array([0]), np.array([-1]), np.array([2])
    whole = op.Mul(half, step)
    if interleaved:
        first, second = op.Slice(x, start, whole, last, step), op.Slice(x, np.array([1]), whole, last, step)
    else:
        first, second = op.Slice(x, start, half, last), op.Slice(x, half, whole, last)
    turned = [
        op.Sub(op.Mul(first, cos), op.Mul(second, sin)),
        op.Add(op.Mul(first, sin), op.Mul(second, cos)),
    ]
    if interleaved:
        pairs = op.Concat(*(op.Unsqueeze(t, last) for t in turned), axis=-1)
        result = op.Reshape(pairs, np.array([0, 0, 0, -1]))
    else:
        result = op.Concat(*turned, axis=-1)
    return op.Concat(result, op.Slice(x, whole, _END, last), axis=-1) if partial else result
