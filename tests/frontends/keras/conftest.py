"""Keras on JAX, in float32 unless a test asks for more; without Keras and JAX these tests are left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

_INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("jax", "keras"))
collect_ignore_glob = [] if _INSTALLED else ["*"]


@pytest.fixture(autouse=True)
def float32() -> Iterator[None]:
    """Every test begins in float32 and with the same random numbers, and leaves no type behind."""
    import keras

    from frontends.keras.keras_models import set_type

    if keras.backend.backend() != "jax":
        pytest.skip("Keras was imported with another backend: run these tests with KERAS_BACKEND=jax")
    set_type("float32")
    keras.utils.set_random_seed(0)
    yield
    set_type("float32")
