"""TensorFlow and tf2onnx, and Keras on TensorFlow for its optimizers; without them these tests are left out."""

from __future__ import annotations

import importlib.util
import sys

import pytest

_INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "tf2onnx"))
collect_ignore_glob = [] if _INSTALLED else ["*"]


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test begins with the same random numbers."""
    import tensorflow as tf

    tf.random.set_seed(0)


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch):
    """Keras on TensorFlow; skip the test where the process has it on another backend already."""
    if "keras" not in sys.modules:
        monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras was imported with another backend: run these tests with KERAS_BACKEND=tensorflow")
    return keras
