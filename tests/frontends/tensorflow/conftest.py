"""TensorFlow and tf2onnx; without them these tests are left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

_INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "tf2onnx"))
collect_ignore_glob = [] if _INSTALLED else ["*"]


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    """Every test begins with the same random numbers."""
    import tensorflow as tf

    tf.random.set_seed(0)
    yield
