"""`from_jax`: convert JAX functions and optax optimizers to training models."""

from __future__ import annotations

from typing import Any

from onward.errors import require_extra

try:
    from onward.frontends.jax.convert import from_jax
except ModuleNotFoundError as error:
    if error.name not in ("jax", "jaxlib"):
        raise
    _missing = error.name

    def from_jax(loss_fn: Any, params: Any, state: Any = None, **_: Any) -> Any:  # type: ignore[misc]  # without jax
        """Raise the error that says how to install what is missing."""
        raise require_extra(_missing, "jax", "onward.from_jax")


__all__ = ["from_jax"]
