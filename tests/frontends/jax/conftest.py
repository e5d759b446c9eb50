"""JAX in 64 bits where a test asks for it; without JAX these tests are left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("jax") is not None else ["*"]


@pytest.fixture
def double() -> Iterator[None]:
    """Compute in float64."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
