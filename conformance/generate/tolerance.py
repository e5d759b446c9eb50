"""How much a result may deviate, by the type it is computed in; SPEC.md says why."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

# Relative to the element, and relative to the largest element of all results.
RELATIVE = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 6e-2}
ABSOLUTE = {"float64": 1e-7, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


# Their coordinates come from scales in float32, and evaluators and runtimes compute them in float32, too.
COORDINATES = {"Resize": 1e-5, "Upsample": 1e-5}


def tolerance(dtype: str, expected: Iterable[np.ndarray], operator: str = "") -> tuple[float, float]:
    """Return rtol and atol for results in `dtype` of an operator."""
    largest = 0.0
    for value in expected:
        array = np.abs(np.asarray(value).astype(np.float64)).ravel()
        largest = max(largest, float(np.max(array[np.isfinite(array)], initial=0.0)))
    scale = largest if largest > 0 else 1.0
    # Two significant digits, so that the manifest does not depend on the last bit of an oracle.
    least = COORDINATES.get(operator, 0.0)
    rtol, atol = max(RELATIVE[dtype], least), max(ABSOLUTE[dtype], least / 10)
    return rtol, float(f"{atol * max(scale, 0.1):.1e}")
