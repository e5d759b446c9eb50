"""Corrected activations."""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun

from onward.backends.reference.ops.elementary import erf


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x) without overflow."""
    e = np.exp(-np.abs(x))
    out: np.ndarray = np.where(x >= 0, 1 / (1 + e), e / (1 + e))
    return out


class Sigmoid(OpRun):
    """Upstream takes e^x and e^-x of every element, which overflows with a warning at large magnitudes."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (sigmoid(x).astype(x.dtype),)


class Swish(OpRun):
    """Upstream overflows with a warning where -alpha * x is large."""

    def _run(self, x: np.ndarray, alpha: float = 1.0) -> tuple[np.ndarray]:
        return ((x * sigmoid(alpha * x)).astype(x.dtype),)


class SwiGLU(OpRun):
    """Upstream overflows with a warning where -alpha * a is large."""

    def _run(self, a: np.ndarray, b: np.ndarray, alpha: float = 1.0) -> tuple[np.ndarray]:
        return ((a * sigmoid(alpha * a) * b).astype(a.dtype),)


class Softsign(OpRun):
    """Upstream fails on a scalar: it divides in place."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


class Gelu(OpRun):
    """Upstream runs the function body, whose Erf rounds to float32."""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
        if approximate == "tanh":
            cumulative = 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        else:
            cumulative = 0.5 * (1 + erf(x * math.sqrt(0.5)))
        return ((x * cumulative).astype(x.dtype),)


class HardSwish(OpRun):
    """Upstream runs the function body, whose attribute rounds 1/6 to float32."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return ((x * np.clip(x / 6 + 0.5, 0, 1)).astype(x.dtype),)


class Elu(OpRun):
    """Upstream takes e^x of positive elements too, which overflows with a warning; alpha=0 is read as absent."""

    def _run(self, x: np.ndarray, alpha: float = 1.0) -> tuple[np.ndarray]:
        return (np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))).astype(x.dtype),)


class Selu(OpRun):
    """Upstream takes e^x of positive elements too, which overflows with a warning."""

    def _run(self, x: np.ndarray, alpha: float = 1.67326, gamma: float = 1.0507) -> tuple[np.ndarray]:
        return ((gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))).astype(x.dtype),)


class Celu(OpRun):
    """Upstream takes e^(x/alpha) of positive elements too, which overflows with a warning."""

    def _run(self, x: np.ndarray, alpha: float = 1.0) -> tuple[np.ndarray]:
        tail = alpha * np.expm1(np.minimum(x, 0) / alpha)
        return ((np.maximum(x, 0) + np.minimum(tail, 0)).astype(x.dtype),)


class LeakyRelu(OpRun):
    """Upstream multiplies by 1 - (sign - 1) * alpha, which rounds the negative slope; alpha=0 is read as absent."""

    def _run(self, x: np.ndarray, alpha: float = 0.01) -> tuple[np.ndarray]:
        return (np.where(x > 0, x, alpha * x).astype(x.dtype),)


OPERATORS: list[type[OpRun]] = [Sigmoid, Softsign, Swish, SwiGLU, Gelu, HardSwish, Elu, Selu, Celu, LeakyRelu]
