"""Compare what a backend returned with what the suite expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def deviations(
    expected: Mapping[str, Any], actual: Sequence[Any] | Mapping[str, Any], rtol: float, atol: float
) -> list[str]:
    """Return one sentence for each value that deviates; `actual` is in the order of `expected`, or by name."""
    if isinstance(actual, Mapping):
        missing = [name for name in expected if name not in actual]
        pairs = [(name, expected[name], actual[name]) for name in expected if name in actual]
    else:
        actual = list(actual)
        missing = list(expected)[len(actual) :]
        if len(actual) > len(expected):
            return [f"returned {len(actual)} outputs, the model has {len(expected)}"]
        pairs = [(name, value, got) for (name, value), got in zip(expected.items(), actual, strict=False)]
    found = [f"`{name}` is missing" for name in missing]
    for name, wanted, got in pairs:
        found += [f"`{name}` {text}" for text in _differ(wanted, got, rtol, atol)]
    return found


def _differ(wanted: Any, got: Any, rtol: float, atol: float) -> list[str]:
    if wanted is None or got is None:
        return [] if wanted is None and got is None else [f"is {_say(got)}, expected {_say(wanted)}"]
    if isinstance(wanted, list):
        if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
            return [f"is {_say(got)}, expected {_say(wanted)}"]
        return [
            f"element {i} {text}"
            for i, (w, g) in enumerate(zip(wanted, got, strict=True))
            for text in _differ(w, g, rtol, atol)
        ]
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape:
        return [f"has shape {list(got.shape)}, expected {list(wanted.shape)}"]
    if not _same_type(got.dtype, wanted.dtype):
        return [f"has element type {got.dtype}, expected {wanted.dtype}"]
    if wanted.dtype.kind in "OUS":
        wrong = np.array([_text(g) != _text(w) for g, w in zip(got.ravel(), wanted.ravel(), strict=True)], dtype=bool)
        return _worst(wrong.reshape(wanted.shape), got, wanted, wrong.astype(float).reshape(wanted.shape), None)
    if wanted.dtype.kind in "biu":
        wrong = got != wanted
        return _worst(wrong, got, wanted, wrong.astype(float), None)
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    g, w = got.astype(wide), wanted.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(g - w)
        same = (g == w) | (np.isnan(g) & np.isnan(w))
        wrong = ~(same | (np.isfinite(w) & (distance <= atol + rtol * np.abs(w))))
        distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
    return _worst(wrong, got, wanted, distance, f"allowed {atol:.3g} + {rtol:.3g} × |expected|")


def _same_type(got: np.dtype, wanted: np.dtype) -> bool:
    return got == wanted or (got.kind in "OUS" and wanted.kind in "OUS")


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _worst(
    wrong: np.ndarray, got: np.ndarray, wanted: np.ndarray, distance: np.ndarray, allowed: str | None
) -> list[str]:
    if not wrong.any():
        return []
    place = np.unravel_index(int(np.argmax(np.where(wrong, distance, -1.0))), wrong.shape)
    at = [int(i) for i in place]
    text = f"deviates at {at}: {got[place]}, expected {wanted[place]}"
    if allowed is not None:
        text += f" (off by {distance[place]:.3g}, {allowed})"
    return [f"{text}; {int(wrong.sum())} of {wrong.size} elements are wrong"]


def _say(value: Any) -> str:
    if value is None:
        return "an empty optional"
    if isinstance(value, (list, tuple)):
        return f"a sequence of {len(value)}"
    return f"a tensor of shape {list(np.shape(value))}"
