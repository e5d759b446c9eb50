"""JAX for the interpreter: how to make an array, and how to read one while JAX traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onward.backends.graph.framework import Framework
from onward.backends.graph.host import Host
from onward.backends.jax.layout import Laid, plain
from onward.backends.jax.registry import REGISTRY
from onward.backends.jax.tensors import Array, to_tensor
from onward.errors import BackendError, Diagnostic

B304 = "B304"


class Jax(Framework):
    """JAX's arrays."""

    title = "JAX"

    def to_tensor(self, array: np.ndarray) -> Array:
        return to_tensor(array)

    def from_host(self, value: Host, like: Sequence[Any] = ()) -> Array:
        if all(isinstance(v, (int, bool)) for v in value.values):
            return jnp.asarray(np.array(value.values, value.dtype).reshape(value.shape))
        sizes = [jnp.asarray(v, value.dtype) for v in value.values]  # the symbols of jax.export
        return jnp.stack(sizes).reshape(value.shape)

    def tensor(self, value: Any, like: Sequence[Any] = ()) -> Any:
        return super().tensor(plain(value), like)

    def read(self, tensor: Any) -> list[Any]:
        flat: list[Any] = concrete(tensor).reshape(-1).tolist()
        return flat

    def select(self, tensor: Any, axis: int, index: int) -> Array:
        return jax.lax.index_in_dim(tensor, index, axis, keepdims=False)

    def stack(self, tensors: list[Any], axis: int) -> Array:
        return jnp.stack(tensors, axis)


JAX = Jax(REGISTRY)
ints, floats, number = JAX.ints, JAX.floats, JAX.number


def concrete(value: Any) -> np.ndarray:
    """Return the values of an array, without a gradient.

    Raises:
        BackendError: the values are not known while JAX traces; the message says what to do.
    """
    try:
        return np.asarray(jax.lax.stop_gradient(value))
    except jax.errors.JAXTypeError as error:
        raise unknown("a size, an axis or a condition depends on data") from error


def unknown(problem: str) -> BackendError:
    """Return the error for a graph that JAX cannot trace."""
    hint = "make it a constant of the model, or call the function without jax.jit, jax.vmap and the like"
    return BackendError(Diagnostic(B304, f"{problem}, and JAX traces without data", hint=hint))


def is_traced(value: Any) -> bool:
    """Return whether a value is not known while JAX traces."""
    if isinstance(value, list):
        return any(is_traced(v) for v in value)
    return isinstance(value.tensor if isinstance(value, Laid) else value, jax.core.Tracer)
