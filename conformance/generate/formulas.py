"""The update formulas of ONNX's training operators, written out from the standard's text.

They work on anything with arithmetic: float64 arrays for training scenarios, mpmath numbers for single updates.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np


def f32(value: float) -> float:
    """Return an attribute's value as a file stores it: a float32."""
    return float(np.float32(value))


def sqrt(value: Any) -> Any:
    return mpmath.sqrt(value) if isinstance(value, mpmath.mpf) else np.sqrt(value)


def adagrad(R: Any, T: int, X: Any, G: Any, H: Any, **attributes: float) -> tuple[Any, Any]:
    """Return the new X and H of Adagrad (ai.onnx.preview.training 1)."""
    a = {"norm_coefficient": 0.0, "epsilon": 1e-6, "decay_factor": 0.0, **attributes}
    r = R / (1 + T * f32(a["decay_factor"]))
    g = f32(a["norm_coefficient"]) * X + G
    H = H + g * g
    return X - r * g / (sqrt(H) + f32(a["epsilon"])), H


def adam(R: Any, T: int, X: Any, G: Any, V: Any, H: Any, **attributes: float) -> tuple[Any, Any, Any]:
    """Return the new X, V and H of Adam (ai.onnx.preview.training 1)."""
    a = {"alpha": 0.9, "beta": 0.999, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0, "epsilon": 1e-6}
    a |= attributes
    alpha, beta = f32(a["alpha"]), f32(a["beta"])
    if isinstance(R, mpmath.mpf):
        alpha, beta = mpmath.mpf(alpha), mpmath.mpf(beta)
    g = f32(a["norm_coefficient"]) * X + G
    V = alpha * V + (1 - alpha) * g
    H = beta * H + (1 - beta) * g * g
    r = R * sqrt(1 - beta**T) / (1 - alpha**T) if T > 0 else R
    X = X - r * V / (sqrt(H) + f32(a["epsilon"]))
    return (1 - f32(a["norm_coefficient_post"])) * X, V, H


def momentum(R: Any, T: int, X: Any, G: Any, V: Any, **attributes: Any) -> tuple[Any, Any]:
    """Return the new X and V of Momentum (ai.onnx.preview.training 1)."""
    alpha, beta = f32(attributes["alpha"]), f32(attributes["beta"])
    g = f32(attributes["norm_coefficient"]) * X + G
    V = alpha * V + (beta if T > 0 else 1.0) * g
    if attributes["mode"] == "standard":
        return X - R * V, V
    return X - R * (g + alpha * V), V


UPDATES = {"Adagrad": adagrad, "Adam": adam, "Momentum": momentum}
STATES = {"Adagrad": ["H"], "Adam": ["V", "H"], "Momentum": ["V"]}


def exact(operator: str, R: float, T: int, tensors: list[np.ndarray], **attributes: Any) -> list[np.ndarray]:
    """Return the results of one update of one tensor with 50 digits, rounded once to float64."""
    with mpmath.workdps(50):
        shape = tensors[0].shape
        columns = [[mpmath.mpf(float(v)) for v in t.ravel()] for t in tensors]
        rows = [UPDATES[operator](mpmath.mpf(R), T, *row, **attributes) for row in zip(*columns, strict=True)]
        count = len(STATES[operator]) + 1
        return [np.array([float(row[k]) for row in rows], np.float64).reshape(shape) for k in range(count)]
