"""Corrected normalizations."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx.reference.op_run import OpRun


def _wide(x: np.ndarray, stash_type: int) -> np.ndarray:
    """Return x in the stash type, or in its own type if that is wider."""
    stash = onnx.helper.tensor_dtype_to_np_dtype(stash_type)
    return x if x.dtype.itemsize > np.dtype(stash).itemsize else x.astype(stash)


def _standardize(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean = x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


class LayerNormalization(OpRun):
    """Upstream gives Mean and InvStdDev in the type of X (the standard: stash_type), and only supports stash_type 1.

    The standard's body computes in stash_type even for double, losing half the digits; here double stays double.
    """

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[np.ndarray, ...]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        normal, mean, inverse = _standardize(_wide(x, stash_type), axes, epsilon)
        y = normal * scale + (0 if bias is None else bias)
        stash = onnx.helper.tensor_dtype_to_np_dtype(stash_type)
        outputs = (y.astype(x.dtype), mean.astype(stash), inverse.astype(stash))
        return outputs[: len(self.onnx_node.output)]


class RMSNormalization(OpRun):
    """Upstream only supports stash_type 1, and computes half precision in half precision."""

    def _run(
        self, x: np.ndarray, scale: np.ndarray, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    ) -> tuple[np.ndarray]:
        wide = _wide(x, stash_type)
        axes = tuple(range(axis % x.ndim, x.ndim))
        normal = wide / np.sqrt((wide**2).mean(axis=axes, keepdims=True) + epsilon)
        return ((normal * scale).astype(scale.dtype),)


class GroupNormalization(OpRun):
    """Upstream runs the function body, which computes in float32 (stash_type) even for double."""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray,
        num_groups: int = 1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[np.ndarray]:
        inner = math.prod(x.shape[1:])
        grouped = _wide(x, stash_type).reshape(x.shape[0], num_groups, inner // num_groups)
        normal = _standardize(grouped, (2,), epsilon)[0]
        # Version 18 has one scale per group, version 21 one per channel.
        normal = normal.reshape(x.shape[0], len(scale), inner // len(scale)) * scale[:, None] + bias[:, None]
        return (normal.reshape(x.shape).astype(x.dtype),)


class MeanVarianceNormalization(OpRun):
    """Upstream runs the function body, whose constants are float32 and whose variance cancels."""

    def _run(self, x: np.ndarray, axes: tuple[int, ...] = (0, 2, 3)) -> tuple[np.ndarray]:
        over = tuple(axes)
        centered = x - x.mean(axis=over, keepdims=True)
        std = np.sqrt((centered**2).mean(axis=over, keepdims=True))
        return ((centered / (std + 1e-9)).astype(x.dtype),)


class LpNormalization(OpRun):
    """Upstream sums x and not |x| for p = 1."""

    def _run(self, x: np.ndarray, axis: int = -1, p: int = 2) -> tuple[np.ndarray]:
        norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
        return (np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class LRN(OpRun):
    """Upstream loops over the batch size instead of the channels, and only accepts four dimensions."""

    def _run(
        self, x: np.ndarray, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1
    ) -> tuple[np.ndarray]:
        total = np.zeros_like(x)
        for c in range(x.shape[1]):
            window = slice(max(0, c - (size - 1) // 2), c + size // 2 + 1)
            total[:, c] = (x[:, window] ** 2).sum(axis=1)
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


OPERATORS: list[type[OpRun]] = [
    LayerNormalization,
    RMSNormalization,
    GroupNormalization,
    MeanVarianceNormalization,
    LpNormalization,
    LRN,
]
