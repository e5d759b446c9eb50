"""Cases of autodiff/rules/attention.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from cases import array, case


def sdpa(**options: Any) -> Any:
    """Return PyTorch's scaled dot product attention on 4-D inputs."""

    def run(Q: Any, K: Any, V: Any, attn_mask: Any = None) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask, **options)

    return run


Q, K, V = array(1, 2, 3, 4), array(1, 2, 3, 4, seed=1), array(1, 2, 3, 2, seed=2)


def rotary(name: str, **keywords: Any) -> Any:
    """Return a case of RotaryEmbedding, which the standard does not define for double."""
    return case("RotaryEmbedding", name, dtypes=(np.float32, np.float16), **keywords)


def linear(name: str, update_rule: str, **keywords: Any) -> Any:
    """Return a case of LinearAttention."""
    given = {"query": array(1, 3, 4), "key": array(1, 3, 4, seed=1), "value": array(1, 3, 6, seed=2), "q_num_heads": 2,
             "kv_num_heads": 2, **keywords}  # fmt: skip
    return case("LinearAttention", name, opset=27, update_rule=update_rule, outputs=["output", "present_state"],
                dtypes=(np.float32, np.float16),
                onnxruntime="has no opset 27", **given)  # fmt: skip


SCORE_MOD = onnx.parser.parse_graph("""
    mod (double[B,H,L,S] scores) => (double[B,H,L,S] out) {
        two = Constant <value = double {2.0}> ()
        bounded = Tanh(scores)
        out = Mul(bounded, two)
    }""")
PROB_MOD = onnx.parser.parse_graph("mod (double[B,H,L,S] p) => (double[B,H,L,S] out) { out = Mul(p, p) }")
BOOL = np.array([[True, False, True], [True, True, False], [False, True, True]])

CASES = [
    case("Attention", "4-D", Q=Q, K=K, V=V, torch=sdpa()),
    case("Attention", "4-D opset 24", Q=Q, K=K, V=V, opset=24, torch=sdpa()),
    case("Attention", "scale", Q=Q, K=K, V=V, scale=0.25, torch=sdpa(scale=0.25)),
    case("Attention", "causal", Q=Q, K=K, V=V, is_causal=1, torch=sdpa(is_causal=True)),
    case("Attention", "bool mask", Q=Q, K=K, V=V, attn_mask=BOOL, torch=sdpa()),
    case("Attention", "float mask", Q=Q, K=K, V=V, attn_mask=array(3, 3, seed=3), torch=sdpa()),
    case("Attention", "float mask per head", Q=Q, K=K, V=V, attn_mask=array(2, 1, 3, seed=3), torch=sdpa(),
         onnxruntime="does not broadcast the mask over the queries"),
    case("Attention", "float mask and causal", Q=Q, K=K, V=V, attn_mask=array(1, 1, 3, 3, seed=3), is_causal=1),
    case("Attention", "cross", Q=array(2, 1, 2, 3), K=array(2, 1, 4, 3, seed=1), V=array(2, 1, 4, 2, seed=2),
         torch=sdpa()),
    case("Attention", "3-D", Q=array(2, 3, 4), K=array(2, 2, 4, seed=1), V=array(2, 2, 6, seed=2), q_num_heads=2,
         kv_num_heads=2),
    case("Attention", "grouped queries 4-D", Q=array(1, 4, 2, 2), K=array(1, 2, 3, 2, seed=1),
         V=array(1, 2, 3, 3, seed=2), torch=sdpa(enable_gqa=True)),
    case("Attention", "grouped queries 3-D", Q=array(1, 2, 8), K=array(1, 3, 4, seed=1), V=array(1, 3, 6, seed=2),
         q_num_heads=4, kv_num_heads=2, attn_mask=array(4, 2, 3, seed=3)),
    case("Attention", "softcap", Q=Q, K=K, V=V, softcap=1.5, attn_mask=array(3, 3, seed=3), is_causal=1),
    case("Attention", "softmax_precision", Q=Q, K=K, V=V, softmax_precision=11,
         onnxruntime="computes the softmax in float only"),
    case("Attention", "cache", Q=array(1, 2, 2, 2), K=array(1, 2, 2, 2, seed=1), V=array(1, 2, 2, 3, seed=2),
         past_key=array(1, 2, 3, 2, seed=3), past_value=array(1, 2, 3, 3, seed=4), is_causal=1,
         outputs=["Y", "present_key", "present_value"]),
    case("Attention", "cache 3-D", Q=array(1, 2, 4), K=array(1, 2, 4, seed=1), V=array(1, 2, 4, seed=2),
         past_key=array(1, 2, 1, 2, seed=3), past_value=array(1, 2, 1, 2, seed=4), q_num_heads=2, kv_num_heads=2,
         outputs=["Y", "present_key", "present_value"]),
    *(
        case("Attention", f"scores mode {mode}", Q=Q, K=K, V=V, softcap=1.5, attn_mask=array(3, 3, seed=3),
             qk_matmul_output_mode=mode, outputs=["Y", "qk_matmul_output"])
        for mode in range(4)
    ),
    case("Attention", "only the scores", Q=Q, K=K, V=V, qk_matmul_output_mode=0, outputs=["Y", "qk_matmul_output"]),
    case("Attention", "padding", Q=array(2, 1, 2, 2), K=array(2, 1, 4, 2, seed=1), V=array(2, 1, 4, 2, seed=2),
         nonpad_kv_seqlen=np.array([2, 4]), opset=24),
    case("Attention", "padding and causal", Q=array(2, 1, 2, 2), K=array(2, 1, 4, 2, seed=1),
         V=array(2, 1, 4, 2, seed=2), nonpad_kv_seqlen=np.array([3, 4]), is_causal=1, opset=24),
    case("Attention", "short mask", Q=array(1, 1, 2, 2), K=array(1, 1, 4, 2, seed=1), V=array(1, 1, 4, 2, seed=2),
         attn_mask=array(2, 3, seed=3), nonpad_kv_seqlen=np.array([3]), opset=24,
         onnxruntime="refuses a mask shorter than the keys"),
    case("Attention", "window", Q=array(1, 1, 4, 2), K=array(1, 1, 4, 2, seed=1), V=array(1, 1, 4, 2, seed=2),
         left_window_size=1, right_window_size=1, opset=25, onnxruntime="has no kernel for Attention 25"),
    case("Attention", "one query, one key", kind="edge", Q=array(1, 1, 1, 2), K=array(1, 1, 1, 2, seed=1),
         V=array(1, 1, 1, 2, seed=2), torch=sdpa()),
    case("Attention", "a row fully masked", kind="special", Q=array(1, 1, 2, 2), K=array(1, 1, 2, 2, seed=1),
         V=array(1, 1, 2, 2, seed=2), attn_mask=np.array([[False, False], [True, True]])),
    case("Attention", "large scores", kind="special", Q=array(1, 1, 2, 2) * 100, K=array(1, 1, 3, 2, seed=1) * 100,
         V=array(1, 1, 3, 2, seed=2), torch=sdpa(), step=1e-5, atol=1e-6, smooth=False),
    rotary("4-D", X=array(1, 2, 3, 4), cos_cache=array(5, 2, seed=1), sin_cache=array(5, 2, seed=2),
         position_ids=np.array([[0, 3, 3]])),
    rotary("4-D interleaved", X=array(2, 1, 2, 4), cos_cache=array(5, 2, seed=1),
         sin_cache=array(5, 2, seed=2), position_ids=np.array([[0, 3], [4, 1]]), interleaved=1),
    rotary("no positions", X=array(2, 2, 2, 4), cos_cache=array(2, 2, 2, seed=1),
         sin_cache=array(2, 2, 2, seed=2)),
    rotary("3-D", X=array(1, 3, 8), cos_cache=array(5, 2, seed=1), sin_cache=array(5, 2, seed=2),
         position_ids=np.array([[0, 3, 2]]), num_heads=2),
    rotary("part of the head", X=array(1, 2, 3, 6), cos_cache=array(5, 2, seed=1),
         sin_cache=array(5, 2, seed=2), position_ids=np.array([[0, 3, 3]]), rotary_embedding_dim=4),
    rotary("part of the head interleaved 3-D", X=array(1, 2, 12), cos_cache=array(5, 2, seed=1),
         sin_cache=array(5, 2, seed=2), position_ids=np.array([[4, 0]]), rotary_embedding_dim=4, interleaved=1,
         num_heads=2),
    rotary("one token", kind="edge", X=array(1, 1, 1, 2), cos_cache=array(1, 1, 1, seed=1),
         sin_cache=array(1, 1, 1, seed=2)),
    rotary("zeros", kind="special", X=np.zeros((1, 1, 1, 2)), cos_cache=np.ones((1, 1, 1)),
         sin_cache=np.zeros((1, 1, 1))),
    *(
        case("CausalConvWithState", f"{activation} {'with' if state else 'without'} state", opset=27,
             input=array(2, 2, 4), weight=array(2, 1, 3, seed=1), activation=activation,
             outputs=["output", "present_state"], onnxruntime="has no opset 27", dtypes=(np.float32, np.float16),
             **({"bias": array(2, seed=2), "past_state": array(2, 2, 2, seed=3)} if state else {}))
        for activation in ("none", "silu")
        for state in (True, False)
    ),
    case("CausalConvWithState", "shorter than the kernel", kind="edge", opset=27, input=array(1, 1, 1),
         weight=array(1, 1, 3, seed=1), past_state=array(1, 1, 2, seed=2), outputs=["output", "present_state"],
         onnxruntime="has no opset 27", dtypes=(np.float32, np.float16)),
    case("CausalConvWithState", "zeros", kind="special", opset=27, input=np.zeros((1, 1, 3)), activation="swish",
         weight=np.zeros((1, 1, 2)), onnxruntime="has no opset 27", dtypes=(np.float32, np.float16)),
    linear("linear", "linear"),
    linear("linear with state, grouped queries", "linear", query=array(1, 3, 8), past_state=array(1, 2, 2, 3, seed=6),
           q_num_heads=4),
    linear("gated", "gated", decay=array(1, 3, 2, seed=4), scale=0.5),
    linear("gated per key", "gated", decay=array(1, 3, 4, seed=4)),
    linear("delta", "delta", beta=array(1, 3, 1, seed=5, low=0, high=1)),
    linear("gated delta", "gated_delta", decay=array(1, 3, 2, seed=4), beta=array(1, 3, 2, seed=5, low=0, high=1),
           past_state=array(1, 2, 2, 3, seed=6)),
    linear("one token", "gated", kind="edge", query=array(1, 1, 4), key=array(1, 1, 4, seed=1),
           value=array(1, 1, 6, seed=2), decay=array(1, 1, 2, seed=4)),
    linear("zeros", "linear", kind="special", query=np.zeros((1, 2, 4)), key=np.zeros((1, 2, 4)),
           value=np.zeros((1, 2, 6))),
    case("FlexAttention", "4-D", domain="ai.onnx.preview", Q=Q, K=K, V=V,
         onnxruntime="has no such operator"),
    case("FlexAttention", "grouped queries, scale", domain="ai.onnx.preview", Q=array(1, 4, 2, 2), scale=0.5,
         K=array(1, 2, 3, 2, seed=1), V=array(1, 2, 3, 3, seed=2),
         onnxruntime="has no such operator"),
    case("FlexAttention", "modified scores and probabilities", domain="ai.onnx.preview", Q=Q, K=K, V=V,
         score_mod=SCORE_MOD, prob_mod=PROB_MOD, dtypes=(np.float64,), onnxruntime="has no such operator"),
    case("FlexAttention", "one query, one key", kind="edge", domain="ai.onnx.preview", Q=array(1, 1, 1, 2),
         K=array(1, 1, 1, 2, seed=1), V=array(1, 1, 1, 2, seed=2), onnxruntime="has no such operator"),
    case("FlexAttention", "large scores", kind="special", domain="ai.onnx.preview", Q=array(1, 1, 2, 2) * 100,
         K=array(1, 1, 3, 2, seed=1) * 100, V=array(1, 1, 3, 2, seed=2), torch=sdpa(), step=1e-5, atol=1e-6,
         smooth=False, onnxruntime="has no such operator"),
]  # fmt: skip
