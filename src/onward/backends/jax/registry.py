"""The table of operators in JAX: see `onward.backends.graph.registry`."""

from __future__ import annotations

from onward.backends.graph.registry import Attributes as Attributes
from onward.backends.graph.registry import Registry

REGISTRY = Registry("jax", "onward.backends.jax.ops")
op = REGISTRY.op
