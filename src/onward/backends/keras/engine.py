"""The backend of Keras: which interpreter runs a graph, and how values become what a graph takes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from onward.backends.keras.parts import A248, Piece
from onward.compiler.program import PlainGraph
from onward.errors import ArgumentError, BackendError, Diagnostic, OnwardError

BACKENDS = ("tensorflow", "jax", "torch")


@dataclasses.dataclass(frozen=True)
class Engine:
    """One backend of Keras."""

    name: str
    interpreter: type
    failures: tuple[type[Exception], ...]
    failure: Callable[[str, Exception], BackendError]
    wide: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    """A context in which the backend has integers of 64 bits."""
    has_doubles: Callable[[], bool] = lambda: True
    """Whether variables may have 64 bits."""
    read: Callable[[Any], Any] = keras.ops.convert_to_tensor
    """Returns a value as a tensor; what a variable holds, and not the variable itself."""

    def held_type(self, dtype: str) -> str:
        """Return the type in which a variable is kept: JAX has no integers of 64 bits unless it is told so."""
        return dtype if self.has_doubles() else {"int64": "int32", "uint64": "uint32"}.get(dtype, dtype)

    def cast(self, value: Any, dtype: str) -> Any:
        """Return a value, or what a variable holds, as a tensor of a type."""
        return keras.ops.cast(self.read(value), dtype)


@functools.cache
def engine() -> Engine:
    """Return the backend that Keras runs on.

    Raises:
        ArgumentError: Onward cannot run graphs on it.
    """
    name = keras.backend.backend()
    if name == "tensorflow":
        from onward.backends.tensorflow import interpreter as tensorflow
        from onward.backends.tensorflow.tensors import read

        return Engine(name, tensorflow.Interpreter, tensorflow.FAILURES, tensorflow.failure, read=read)
    if name == "torch":
        from onward.backends.torch import interpreter as torch

        return Engine(name, torch.Interpreter, torch.FAILURES, torch.failure)
    if name == "jax":
        from onward.backends.jax import interpreter as jax
        from onward.backends.jax.tensors import has_doubles, wide

        return Engine(name, jax.Interpreter, jax.FAILURES, jax.failure, wide, has_doubles)
    raise ArgumentError(
        Diagnostic(
            A248,
            f"Keras runs on `{name}`, which cannot train",
            needed=f"KERAS_BACKEND set to one of: {', '.join(BACKENDS)}, before Keras is imported",
        )
    )


def check_types(dtypes: Mapping[str, np.dtype]) -> None:
    """Raise if the backend cannot hold the variables: JAX has float64 only if it is told so."""
    if engine().has_doubles():
        return
    wide = [n for n, dtype in dtypes.items() if dtype == np.float64]
    if wide:
        raise ArgumentError(
            Diagnostic(
                A248,
                "the model computes in float64, and JAX is set to 32 bits",
                found=f"`{wide[0]}`" + f" and {len(wide) - 1} more" * (len(wide) > 1),
                hint='jax.config.update("jax_enable_x64", True) before the model is made',
            )
        )


class Runner:
    """A graph ready to run on the backend of Keras: `runner(values, what)` returns its outputs by name."""

    def __init__(self, graph: PlainGraph | Piece, what: str) -> None:
        self.what = what
        if isinstance(graph, Piece):
            self._interpreter = engine().interpreter(graph.graph, graph.opset, outputs=graph.wanted())
            inputs = graph.graph.inputs
        else:
            copied = graph.copy_model().graph
            self._interpreter = engine().interpreter(copied, graph.opset)
            inputs = copied.inputs
        self.types = {
            v.name or "": str(v.dtype.numpy())
            for v in inputs
            if isinstance(v.type, ir.TensorType) and v.dtype is not None
        }

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        given = {n: engine().cast(values[n], dtype) for n, dtype in self.types.items() if n in values}
        try:
            found: dict[str, Any] = self._interpreter.run(given)
            return found
        except OnwardError:
            raise
        except engine().failures as error:
            raise engine().failure(self.what, error) from error


def new_variable(name: str, value: np.ndarray, *, trainable: bool) -> Any:
    """Return a Keras variable whose path is an ONNX name, as far as Keras allows it."""
    parts = [_allowed(part) for part in name.split("/") if part] or ["variable"]
    with contextlib.ExitStack() as scopes:
        for index, part in enumerate(parts[:-1]):
            scopes.enter_context(keras.name_scope(part, **({} if index else {"override_parent": ""})))
        dtype = engine().held_type(value.dtype.name)
        return keras.Variable(
            np.asarray(value).astype(dtype) if _fits(name, value, dtype) else value,
            dtype=dtype,
            trainable=trainable,
            name=parts[-1],
            autocast=False,
        )


def _allowed(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in name)


def _fits(name: str, value: np.ndarray, dtype: str) -> bool:
    if value.dtype.name == dtype:
        return False
    limits = np.iinfo(dtype)
    if value.size and (value.min() < limits.min or value.max() > limits.max):
        raise ArgumentError(
            Diagnostic(
                A248,
                f"`{name}` has numbers beyond 32 bits, and JAX is set to 32 bits",
                found=f"{value.min()} to {value.max()}",
                hint='jax.config.update("jax_enable_x64", True) before the model is made',
            )
        )
    return True


def assign(variable: Any, value: Any) -> None:
    """Give a variable a new value, in its own type."""
    variable.assign(engine().cast(value, variable.dtype))
