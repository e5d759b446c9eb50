"""Attention, rotary embeddings and causal convolutions.

LinearAttention and FlexAttention have no rule: their bodies in the standard are differentiated.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onward.autodiff import function_bodies as expand
from onward.autodiff.problems import Unsupported
from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient, through_body
from onward.autodiff.rule import Rule
from onward.autodiff.rules._windows import extent, reshape_target
from onward.autodiff.types import Grads
from onward.graph import walk
from onward.graph.builder import Value

_AFTER_SOFTMAX = 3


def _linear_attention(node: ir.Node, opset: int) -> ir.Function | None:
    """Return the standard's body, which computes in float32; for double inputs, the same body in double.

    The standard does not have double. Finite differences need it.
    """
    function = expand.standard_body(node, opset)
    if function is None or node.inputs[0] is None or node.inputs[0].dtype != ir.DataType.DOUBLE:
        return function
    for inner in walk.all_nodes(function):
        if inner.op_type == "Cast" and inner.attributes["to"].as_int() == ir.DataType.FLOAT:
            inner.attributes["to"] = ir.AttrInt64("to", ir.DataType.DOUBLE.value)
        elif inner.op_type == "Constant":
            value = walk.constant_of(inner.outputs[0])
            if value is not None and value.dtype == np.float32:
                inner.attributes.clear()
                inner.attributes["value"] = ir.AttrTensor("value", ir.tensor(value.astype(np.float64)))
        elif inner.op_type == "ConstantOfShape":  # the first state: zeros, float32 by default
            inner.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1)))
        for graph in walk.subgraphs(inner):
            for formal in (*graph.inputs, *graph.outputs):
                if formal.dtype == ir.DataType.FLOAT:
                    formal.dtype = ir.DataType.DOUBLE
    return function


through_body("LinearAttention", opset=27, body=_linear_attention)


@dataclasses.dataclass(frozen=True)
class _Heads:
    """How the heads are packed. The query heads that share a key head are treated as one longer query."""

    packed: bool  # 3-D: [N, S, heads * size], else [N, heads, S, size]
    queries: int | Value
    keys: int | Value

    @property
    def grouped(self) -> bool:
        return not (isinstance(self.queries, int) and self.queries == self.keys)


@gradient("Attention", opset=23)
@gradient("Attention", opset=24, nonpad_kv_seqlen=NON_DIFFERENTIABLE)
def attention(
    rule: Rule,
    dY: Value | None,
    dpresent_key: Value | None,
    dpresent_value: Value | None,
    dqk_matmul_output: Value | None,
) -> Grads:
    """Y = P V with P = softmax(S), S = cap(scale Q K^T) + mask.

    dV = P^T dY; dP = dY V^T; dS = P (dP - the row sums of dP P); if only Y has a gradient, those are the sums of dY Y;
    dmask = dS; dQ = scale cap'(...) dS K; dK = scale cap'(...) dS^T Q.
    """
    op, heads = rule.op, _heads(rule)
    past = rule.optional_input("past_key") is not None
    K = rule.request_output("present_key") if past else _unpack(rule, rule.input("K"), heads.keys, heads)
    V = rule.request_output("present_value") if past else _unpack(rule, rule.input("V"), heads.keys, heads)
    Q = _merge(rule, _unpack(rule, rule.input("Q"), heads.queries, heads), heads)
    mode = rule.attr("qk_matmul_output_mode", 0) if dqk_matmul_output is not None else None
    grads: dict[str, Value | list[Value | None] | None] = {}
    dK, dV = dpresent_key, dpresent_value
    dS: Value | None = None

    def with_output(grad: Value | None, stage: int) -> Value | None:
        """Return `grad` plus the gradient of qk_matmul_output, if that output is taken at this stage."""
        return _add(rule, grad, _merge(rule, dqk_matmul_output, heads)) if mode == stage else grad

    if dY is not None or mode == _AFTER_SOFTMAX:
        given = dqk_matmul_output if mode == _AFTER_SOFTMAX else None
        dS, dV = _through_probabilities(rule, dY, given, dV, V, heads)
    dS = with_output(dS, 2)
    mask = rule.optional_input("attn_mask")
    if mask is not None and rule.needs("attn_mask") and dS is not None:
        grads["attn_mask"] = _mask_gradient(rule, dS, mask, heads)
    dS = with_output(dS, 1)
    scale, softcap = _scale(rule, heads), rule.attr("softcap", 0.0)
    if dS is not None and softcap:
        # cap(s) = c tanh(s / c), so cap' = 1 - tanh^2.
        scores = op.Mul(op.MatMul(Q, op.Transpose(K, perm=[0, 1, 3, 2])), scale)
        capped = op.Tanh(op.Div(scores, float(softcap)))
        dS = op.Sub(dS, op.Mul(dS, op.Mul(capped, capped)))
    dS = with_output(dS, 0)
    if dS is not None and rule.needs("Q"):
        grads["Q"] = _pack(rule, op.Mul(op.MatMul(dS, K), scale), rule.input("Q"), heads)
    if dS is not None and (rule.needs("K") or past):
        dK = _add(rule, op.Mul(op.MatMul(op.Transpose(dS, perm=[0, 1, 3, 2]), Q), scale), dK)
    _divide_cache(rule, grads, "K", "past_key", dK, heads)
    _divide_cache(rule, grads, "V", "past_value", dV, heads)
    return grads


def _through_probabilities(
    rule: Rule, dY: Value | None, given: Value | None, dV: Value | None, V: Value, heads: _Heads
) -> tuple[Value, Value | None]:
    """Return dS and dV; `given` is the gradient of the probabilities as an output of the node."""
    op, P = rule.op, _merge(rule, _probabilities(rule), heads)
    dP = None if given is None else _merge(rule, given, heads)
    if dY is not None:
        dY_heads = _merge(rule, _unpack(rule, dY, heads.queries, heads), heads)
        if rule.needs("V") or rule.optional_input("past_value") is not None:
            dV = _add(rule, op.MatMul(op.Transpose(P, perm=[0, 1, 3, 2]), dY_heads), dV)
        dP = _add(rule, op.MatMul(dY_heads, op.Transpose(V, perm=[0, 1, 3, 2])), dP)
    assert dP is not None
    return _through_softmax(rule, P, dP, dY if given is None else None, heads), dV


def _heads(rule: Rule) -> _Heads:
    Q, K = rule.input("Q"), rule.input("K")
    rank = rule.rank(Q)
    if rank is None:
        raise Unsupported("the rank of Q is unknown (3 or 4); give the model's inputs shapes (symbols are enough)")
    if rank == 3:
        return _Heads(True, rule.attr("q_num_heads"), rule.attr("kv_num_heads"))
    return _Heads(False, extent(rule, Q, 1), extent(rule, K, 1))


def _unpack(rule: Rule, value: Value, count: int | Value, heads: _Heads) -> Value:
    """Return [N, heads, S, size]."""
    if not heads.packed:
        return value
    split = rule.op.Reshape(value, reshape_target(rule, [0, 0, count, -1]))
    return rule.op.Transpose(split, perm=[0, 2, 1, 3])


def _merge(rule: Rule, value: Value | None, heads: _Heads) -> Value:
    """Return [N, key heads, S * queries per key, ...] from [N, query heads, S, ...]."""
    assert value is not None
    if not heads.grouped:
        return value
    length = extent(rule, rule.input("Q"), 1 if heads.packed else 2)
    if isinstance(length, int) and isinstance(heads.queries, int) and isinstance(heads.keys, int):
        return rule.op.Reshape(value, [0, heads.keys, heads.queries // heads.keys * length, -1])
    last = rule.op.Shape(value, start=3)
    return rule.op.Reshape(value, reshape_target(rule, [0, heads.keys, -1, last]))


def _pack(rule: Rule, value: Value, like: Value, heads: _Heads) -> Value:
    """Return a gradient of merged query heads in the shape of Q."""
    op = rule.op
    if not heads.packed:
        return rule.reshape_like(value, like) if heads.grouped else value
    if heads.grouped:
        value = op.Reshape(value, reshape_target(rule, [0, heads.queries, extent(rule, like, 1), -1]))
    return op.Reshape(op.Transpose(value, perm=[0, 2, 1, 3]), [0, 0, -1])


def _probabilities(rule: Rule) -> Value:
    """Return P, an optional output of the forward node; if that output is in use, P of a second Attention."""
    node = rule.node
    if rule.optional_output("qk_matmul_output") is None:
        node.attributes["qk_matmul_output_mode"] = ir.AttrInt64("qk_matmul_output_mode", _AFTER_SOFTMAX)
        return rule.request_output("qk_matmul_output")
    if rule.attr("qk_matmul_output_mode", 0) == _AFTER_SOFTMAX:
        return rule.output("qk_matmul_output")
    attributes = {n: a.value for n, a in node.attributes.items() if n != "qk_matmul_output_mode"}
    again = rule.op.multi("Attention", *node.inputs, outputs=4, qk_matmul_output_mode=_AFTER_SOFTMAX, **attributes)
    if rule.optional_input("past_key") is None:
        again[1].name = again[2].name = ""
    return again[3]


def _through_softmax(rule: Rule, P: Value, dP: Value, dY: Value | None, heads: _Heads) -> Value:
    op = rule.op
    if dY is None:
        rows = op.ReduceSum(op.Mul(dP, P), [-1], keepdims=1)
    else:
        product = op.Mul(dY, rule.output("Y"))
        if heads.packed:
            split = op.Reshape(product, reshape_target(rule, [0, 0, heads.queries, -1]))
            rows = op.Transpose(op.ReduceSum(split, [-1], keepdims=1), perm=[0, 2, 1, 3])
        else:
            rows = op.ReduceSum(product, [-1], keepdims=1)
        rows = _merge(rule, rows, heads)
    return op.Mul(P, op.Sub(dP, rows))


def _mask_gradient(rule: Rule, dS: Value, mask: Value, heads: _Heads) -> Value:
    """Return dS over the keys that the mask covers, summed over the axes on which the mask broadcasts."""
    op = rule.op
    P = _probabilities(rule)
    whole = rule.reshape_like(dS, P) if heads.grouped else dS
    length, total = extent(rule, mask, -1), extent(rule, P, -1)
    if not isinstance(length, int) or length != total:
        end = [length] if isinstance(length, int) else length
        whole = op.Slice(whole, [0], end, [-1])
    # The last axis now has the size of the mask; the others broadcast as usual.
    return rule.unbroadcast(whole, whole, mask)


def _scale(rule: Rule, heads: _Heads) -> float | Value:
    given = rule.attr("scale")
    if given is not None:
        return float(given)
    Q = rule.input("Q")
    size = extent(rule, Q, -1)
    if isinstance(size, int):
        return 1.0 / math.sqrt(size // heads.queries if heads.packed and isinstance(heads.queries, int) else size)
    op = rule.op
    if heads.packed:
        size = op.Div(size, heads.queries)
    assert Q.dtype is not None
    return op.Reciprocal(op.Sqrt(op.cast(size, Q.dtype)))


def _divide_cache(
    rule: Rule,
    grads: dict[str, Value | list[Value | None] | None],
    name: str,
    past_name: str,
    grad: Value | None,
    heads: _Heads,
) -> None:
    """Divide the gradient of a whole cache between the past and the incoming part."""
    if grad is None:
        return
    op = rule.op
    past = rule.optional_input(past_name)
    if past is not None:
        length = rule.dim_of(past, 2)
        grads[past_name] = op.Slice(grad, [0], length, [2])
        grad = op.Slice(grad, length, [np.iinfo(np.int64).max], [2])
    if heads.packed:
        grad = op.Reshape(op.Transpose(grad, perm=[0, 2, 1, 3]), [0, 0, -1])
    grads[name] = grad


def _add(rule: Rule, first: Value | None, second: Value | None) -> Value:
    if first is None or second is None:
        found = first if first is not None else second
        assert found is not None
        return found
    return rule.op.Add(first, second)


@gradient("RotaryEmbedding", opset=23, position_ids=NON_DIFFERENTIABLE)
def rotary_embedding(rule: Rule, dY: Value) -> Grads:
    """Y = X turned by the angles, so dX = dY turned back; dcos = dY . X and dsin = dY . (X turned by 90 degrees)."""
    op, X = rule.op, rule.input("X")
    cos, sin, positions = rule.input("cos_cache"), rule.input("sin_cache"), rule.optional_input("position_ids")
    grads: dict[str, Value | list[Value | None] | None] = {}
    if rule.needs("X"):
        attributes = {name: attribute.value for name, attribute in rule.node.attributes.items()}
        grads["X"] = op.RotaryEmbedding(dY, cos, op.Neg(sin), positions, **attributes)
    if rule.needs("cos_cache") or rule.needs("sin_cache"):
        first, second = _halves(rule, X)
        dfirst, dsecond = _halves(rule, dY)
        heads = _heads_axis(rule)
        for name, value in (
            ("cos_cache", op.Add(op.Mul(dfirst, first), op.Mul(dsecond, second))),
            ("sin_cache", op.Sub(op.Mul(dsecond, first), op.Mul(dfirst, second))),
        ):
            if rule.needs(name):
                grads[name] = _at_positions(rule, op.ReduceSum(value, heads, keepdims=0), rule.input(name), positions)
    return grads


def _heads_axis(rule: Rule) -> Value | np.ndarray:
    """Return where the heads are after `_halves`: axis 2 if X is 3-D, axis 1 if 4-D."""
    rank = rule.rank(rule.input("X"))
    if rank is None and rule.attr("num_heads", 0):
        return rule.op.Sub(5, rule.op.Shape(rule.op.Shape(rule.input("X"))))
    return np.array([2 if rank == 3 else 1], np.int64)


def _halves(rule: Rule, value: Value) -> tuple[Value, Value]:
    """Return the two coordinates of every rotated pair, heads apart (axis 2 if X is 3-D, axis 1 if 4-D)."""
    op, X, heads = rule.op, rule.input("X"), rule.attr("num_heads", 0)
    if rule.rank(X) == 3:
        value = op.Reshape(value, [0, 0, heads, -1])
    elif rule.rank(X) is None and heads:
        packed = op.Equal(op.Shape(op.Shape(X)), 3)
        third = op.Where(packed, heads, op.Shape(X, start=2, end=3))
        value = op.Reshape(value, op.Concat([0, 0], third, [-1], axis=0))
    half = rule.dim_of(rule.input("cos_cache"), -1)
    whole = op.Mul(half, 2)
    if rule.attr("interleaved", 0):
        return op.Slice(value, [0], whole, [-1], [2]), op.Slice(value, [1], whole, [-1], [2])
    return op.Slice(value, [0], half, [-1]), op.Slice(value, half, whole, [-1])


def _at_positions(rule: Rule, grad: Value, cache: Value, positions: Value | None) -> Value:
    """Return the gradient of a cache, whose rows the forward gathered at `positions`, if there are any."""
    if positions is None:
        return grad
    op = rule.op
    rows = op.Reshape(grad, reshape_target(rule, [-1, rule.dim_of(cache, 1)]))
    where = op.Expand(op.Reshape(positions, [-1, 1]), op.Shape(rows))
    return op.ScatterElements(rule.zeros_like(cache), where, rows, axis=0, reduction="add")


@gradient("CausalConvWithState", opset=27)
def causal_conv_with_state(rule: Rule, doutput: Value | None, dpresent_state: Value | None) -> Grads:
    """output_t = act(bias + the sum over k of weight_k whole_(t+k)), with whole = past_state before input.

    With dpre the gradient before act: dwhole_u = the sum over k of weight_k dpre_(u-k), dweight_k = the sum over t of
    dpre_t whole_(t+k), and dbias = the sum of dpre.
    """
    op = rule.op
    X, W = rule.input("input"), rule.input("weight")
    bias, past = rule.optional_input("bias"), rule.optional_input("past_state")
    before = op.Sub(rule.dim_of(W, 2), 1)
    nothing = op.constant(np.zeros(2, np.int64))
    grads: dict[str, Value | list[Value | None] | None] = {}
    dwhole: Value | None = None
    if dpresent_state is not None:
        dwhole = op.Pad(dpresent_state, op.Concat(nothing, rule.dim_of(X, 2), nothing, [0], axis=0))
    if doutput is not None:
        dpre = doutput
        silu = rule.attr("activation", "none") != "none"
        if silu or rule.needs("weight"):
            if past is not None:
                whole = op.Concat(past, X, axis=2)
            else:
                whole = op.Pad(X, op.Concat(nothing, before, nothing, [0], axis=0))
            columns = _columns(rule, whole, rule.dim_of(X, 2), W)
        if silu:
            # silu(s) = s sigmoid(s), so silu' = sigmoid (1 + s (1 - sigmoid)).
            pre = op.Squeeze(op.MatMul(columns, op.Transpose(W, perm=[0, 2, 1])), [3])
            if bias is not None:
                pre = op.Add(pre, op.Unsqueeze(bias, [1]))
            sigmoid = op.Sigmoid(pre)
            dpre = op.Mul(doutput, op.Mul(sigmoid, op.Add(op.Mul(pre, op.Sub(1.0, sigmoid)), 1.0)))
        if bias is not None and rule.needs("bias"):
            grads["bias"] = op.ReduceSum(dpre, [0, 2], keepdims=0)
        if rule.needs("weight"):
            grads["weight"] = op.ReduceSum(op.MatMul(op.Unsqueeze(dpre, [2]), columns), [0], keepdims=0)
        wide = op.Pad(dpre, op.Concat(nothing, before, nothing, before, axis=0))
        flipped = op.Slice(W, [-1], [np.iinfo(np.int64).min], [2], [-1])
        spread = op.MatMul(
            _columns(rule, wide, op.Add(rule.dim_of(X, 2), before), W), op.Transpose(flipped, perm=[0, 2, 1])
        )
        dwhole = _add(rule, dwhole, op.Squeeze(spread, [3]))
    assert dwhole is not None
    grads["input"] = op.Slice(dwhole, before, [np.iinfo(np.int64).max], [2])
    if past is not None:
        grads["past_state"] = op.Slice(dwhole, [0], before, [2])
    return grads


def _columns(rule: Rule, data: Value, count: Value, kernel: Value) -> Value:
    """Return [N, C, count, K] with element [..., t, k] = data[..., t + k]."""
    op = rule.op
    rows = op.Range(0, op.Squeeze(count, [0]), 1)
    taps = op.Range(0, op.Squeeze(rule.dim_of(kernel, 2), [0]), 1)
    return op.Gather(data, op.Add(op.Unsqueeze(rows, [1]), taps), axis=2)
