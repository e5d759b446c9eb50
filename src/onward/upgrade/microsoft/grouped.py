"""`GroupQueryAttention`: the attention of language models, where several heads of queries share keys and values."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.upgrade.microsoft.attention import in_heads, rotate
from onward.upgrade.microsoft.call import Call, CannotDecompose, decomposes

_ATTRIBUTES = ("smooth_softmax", "sliding_window_cache", "kv_cache_bit_width", "qk_output")  # not 0: not decomposed
_ONE = np.array([1])


@decomposes("GroupQueryAttention")
def group_query_attention(call: Call) -> list[Value | None]:
    """output = softmax(scale Q Kᵀ + bias) V, where a query sees the keys up to its own place.

    A sample has `seqlens_k` + 1 keys. Its new keys follow those of its past, also where other samples have more.
    """
    op, heads, groups = call.op, int(call.attr("num_heads", 0)), int(call.attr("kv_num_heads", 0))
    if any(call.attr(name, 0) for name in _ATTRIBUTES) or any(call.input(i) is not None for i in range(11, 16)):
        raise CannotDecompose("a quantized or sliding cache, sinks, or normalized queries")
    if not call.attr("causal", 1):
        raise CannotDecompose("attention to later places")
    q, k, v = _split(call, heads, groups)
    queries = op.Slice(op.Shape(q), np.array([2]), np.array([3]))
    lengths = op.Add(op.Cast(call.required(5), to=ir.DataType.INT64), np.array([1]))
    before = op.Sub(op.Reshape(lengths, np.array([-1])), queries)
    longest = op.Reshape(op.Cast(call.required(6), to=ir.DataType.INT64), np.array([1]))
    before = op.Where(op.Equal(longest, queries), op.constant(np.array([0])), before)  # a prompt begins at 0
    before = op.Unsqueeze(before, _ONE)
    places = op.Add(before, call.range(queries))  # [N, S]
    if call.attr("do_rotary", 0):
        given = call.input(9)
        where = places if given is None else given
        cos, sin = (op.Unsqueeze(op.Gather(call.required(i), where, axis=0), _ONE) for i in (7, 8))
        half = call.shape(call.size(call.required(7), 1))
        q, k = (rotate(op, x, cos, sin, half, bool(call.attr("rotary_interleaved", 0))) for x in (q, k))
    past_key, past_value = call.input(3), call.input(4)
    if past_key is not None and past_value is not None:
        if len([o for o in call.node.outputs if o.name]) < 3:
            raise CannotDecompose("a past without outputs for the present, which the kernel ignores")
        k, v = (_joined(call, past, new, before) for past, new in ((past_key, k), (past_value, v)))
    size = op.Squeeze(op.Slice(op.Shape(q), np.array([3]), np.array([4])), np.array([0]))
    known = call.size(q, 3) if q.shape is not None else None
    scale: float | Value = call.attr("scale", 0.0) or (
        1.0 / math.sqrt(known) if isinstance(known, int) else op.Reciprocal(op.Sqrt(op.Cast(size, to=_dtype(q))))
    )
    wide_k, wide_v = (_repeated(call, x, heads // groups) for x in (k, v))
    scores = op.Mul(op.MatMul(q, op.Transpose(wide_k, perm=[0, 1, 3, 2])), scale)
    softcap = float(call.attr("softcap", 0.0))
    if softcap > 0:
        scores = op.Mul(op.Tanh(op.Div(scores, softcap)), softcap)
    if call.input(10) is not None:
        scores = op.Add(scores, call.input(10))
    keys = call.range(op.Slice(op.Shape(k), np.array([2]), np.array([3])))
    own = op.Unsqueeze(places, np.array([1, 3]))  # [N, 1, S, 1]
    seen = op.LessOrEqual(keys, own)
    window = int(call.attr("local_window_size", -1))
    if window > 0:
        seen = op.And(seen, op.Greater(keys, op.Sub(own, np.array(window))))
    scores = op.Where(seen, scores, op.constant(float(np.finfo(_dtype(q).numpy()).min), _dtype(q)))
    mixed = op.Transpose(op.MatMul(op.Softmax(scores, axis=-1), wide_v), perm=[0, 2, 1, 3])
    return [op.Reshape(mixed, np.array([0, 0, -1])), k, v]


def _split(call: Call, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """Return queries, keys and values as [N, heads, S, size]."""
    op, query, key, value = call.op, call.required(0), call.input(1), call.input(2)
    if key is not None and value is not None:
        return in_heads(op, query, heads), in_heads(op, key, groups), in_heads(op, value, groups)
    joined = in_heads(op, query, heads + 2 * groups)
    sizes = np.array([heads, groups, groups])
    q, k, v = op.multi("Split", joined, sizes, outputs=3, axis=1)
    return q, k, v


def _joined(call: Call, past: Value, new: Value, before: Value) -> Value:
    """Return the past of each sample, then its new keys: those of a sample with a shorter past begin earlier."""
    op = call.op
    both = op.Concat(past, new, axis=2)
    length = op.Slice(op.Shape(past), np.array([2]), np.array([3]))
    total = op.Slice(op.Shape(both), np.array([2]), np.array([3]))
    place = call.range(total)  # [T]
    moved = op.Add(op.Sub(place, before), length)
    chosen = op.Min(op.Where(op.Less(place, before), place, moved), op.Sub(total, _ONE))  # [N, T]
    index = op.Expand(op.Unsqueeze(chosen, np.array([1, 3])), op.Shape(both))
    return op.GatherElements(both, index, axis=2)


def _repeated(call: Call, value: Value, times: int) -> Value:
    """Return [N, groups * times, S, size]: each group for as many heads as share it."""
    if times == 1:
        return value
    op = call.op
    shape = op.Shape(value)
    first, rest = op.Slice(shape, np.array([0]), np.array([2])), op.Slice(shape, np.array([2]), np.array([4]))
    wide = op.Expand(op.Unsqueeze(value, np.array([2])), op.Concat(first, np.array([times]), rest, axis=0))
    count = op.Mul(op.Slice(shape, np.array([1]), np.array([2])), np.array([times]))
    return op.Reshape(wide, op.Concat(op.Slice(shape, np.array([0]), np.array([1])), count, rest, axis=0))


def _dtype(value: Value) -> ir.DataType:
    return value.dtype or ir.DataType.FLOAT
