"""50 steps on changing batches, the last one smaller, against `train_on_batch`: fresh and half-trained models."""

from __future__ import annotations

import pytest

from frontends.keras.keras_models import CASES, set_type
from frontends.keras.keras_runs import errors

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def backend(name: str, dtype: str) -> str:
    """ONNX Runtime has no Conv, Erf (GELU) and Sinh (SELU) in float64."""
    return "torch" if dtype == "float64" and name in ("cnn", "depthwise", "transformer", "two") else "onnxruntime"


@pytest.mark.parametrize("before", [0, 6], ids=["fresh", "half-trained"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_training_continues_as_in_keras(name: str, dtype: str, before: int) -> None:
    set_type(dtype)

    found = errors(CASES[name](), before=before, backend=backend(name, dtype))

    assert max(found.values()) <= TOLERANCE[dtype], found
