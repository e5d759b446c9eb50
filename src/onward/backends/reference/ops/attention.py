"""Corrected attention and causal convolution, computed in the type of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_attention

_compute: Callable[..., Any] = op_attention._compute_attention


class Attention(OpRun):
    """Upstream gives the capped scores as qk_matmul_output in mode 0 too, where the standard wants the raw ones."""

    def _run(self, *inputs: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
        results = _compute(*inputs, _validate_attention25=False, **attributes)
        if attributes.get("softcap") and not attributes.get("qk_matmul_output_mode"):
            raw = _compute(*inputs, _validate_attention25=False, **{**attributes, "softcap": 0.0})
            return (*results[:3], raw[3])
        return tuple(results)


class CausalConvWithState(OpRun):
    """Upstream computes the activation in float32."""

    def _run(
        self,
        X: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        past_state: np.ndarray | None = None,
        activation: str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        taps, length = weight.shape[2], X.shape[2]
        past = np.zeros((*X.shape[:2], taps - 1), X.dtype) if past_state is None else past_state
        whole = np.concatenate([past, X], axis=2)
        result = np.zeros(X.shape, X.dtype)
        for tap in range(taps):
            result += whole[:, :, tap : tap + length] * weight[:, :, tap]
        if bias is not None:
            result += bias[:, None]
        if activation in ("silu", "swish"):
            result = result / (1 + np.exp(-result))
        return result.astype(X.dtype), whole[:, :, length:]


class LinearAttention(OpRun):
    """Upstream computes in float32 for any input type, which is too inaccurate for finite differences."""

    def _run(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        past_state: np.ndarray | None = None,
        decay: np.ndarray | None = None,
        beta: np.ndarray | None = None,
        chunk_size: int | None = None,
        kv_num_heads: int = 1,
        q_num_heads: int = 1,
        scale: float | None = None,
        update_rule: str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        batch, steps, _ = query.shape
        q, k, v = (
            x.astype(np.promote_types(x.dtype, np.float32)).reshape(batch, steps, heads, -1)
            for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
        )
        k_size, v_size = k.shape[3], v.shape[3]
        state = np.zeros((batch, kv_num_heads, k_size, v_size), q.dtype)
        if past_state is not None:
            state = past_state.astype(q.dtype)
        out = np.zeros((batch, steps, q_num_heads, v_size), q.dtype)
        for t in range(steps):
            if decay is not None:
                state = state * np.exp(decay[:, t].astype(q.dtype)).reshape(batch, kv_num_heads, -1, 1)
            wanted = v[:, t]
            if update_rule in ("delta", "gated_delta"):
                assert beta is not None
                known = np.einsum("nhkv,nhk->nhv", state, k[:, t])
                wanted = beta[:, t].astype(q.dtype)[..., None] * (wanted - known)
            state = state + k[:, t][..., None] * wanted[:, :, None, :]
            shared = np.repeat(state, q_num_heads // kv_num_heads, axis=1)
            out[:, t] = np.einsum("nhkv,nhk->nhv", shared, q[:, t]) * (scale or 1 / np.sqrt(k_size))
        kept = query.dtype if past_state is None else past_state.dtype
        return out.reshape(batch, steps, -1).astype(query.dtype), state.astype(kept)


OPERATORS = [Attention, CausalConvWithState, LinearAttention]
