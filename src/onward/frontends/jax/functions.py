"""The user's functions: how they are called, and what their errors say."""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from onward.errors import A101, ArgumentError, Diagnostic, OnwardError
from onward.frontends.jaxpr import versions
from onward.frontends.jaxpr.translator import trace

A221 = "A221"
A226 = "A226"

_KEY_NAMES = ("key", "rng", "rngs", "rng_key", "prng_key", "dropout_key", "dropout_rng")


def takes_key(function: Callable[..., Any], count: int) -> bool:
    """Return whether the loss function takes a random key after its first `count` arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) <= count:
        return False
    following = positional[count]
    return following.default is following.empty or following.name in _KEY_NAMES


def check_callable(function: Any, place: str, needed: str) -> None:
    """Raise unless `function` is a function."""
    if not callable(function) or isinstance(function, type):
        raise ArgumentError(
            Diagnostic(A101, f"{place} is not a function", place=place, found=repr(function)[:200], needed=needed)
        )


def name_of(function: Callable[..., Any] | None) -> str:
    """Return the name of a function for messages."""
    return getattr(function, "__qualname__", None) or type(function).__name__


def traced(function: Callable[..., Any], examples: Sequence[Any], structs: Sequence[Any]) -> tuple[Any, Any]:
    """Return the jaxpr of `function` for `structs`, and the shapes that it returns.

    Where that fails, the function is traced for the example too: if it fails there as well, that error says more than
    one about symbolic sizes.
    """
    try:
        return trace(function, *structs)
    except Exception:  # a function of the user may raise any type
        jax.eval_shape(function, *examples)
        raise


def check_scalar(value: Any, what: str) -> None:
    """Raise unless the shape that a loss function returns is that of one floating-point number."""
    if not hasattr(value, "shape") or value.shape != () or not np.issubdtype(value.dtype, np.floating):
        found = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(value)]
        raise ArgumentError(
            Diagnostic(
                "A201",
                "the loss is not one number",
                place=what,
                found=", ".join(found)[:100] or "nothing",
                needed="a floating-point scalar",
                hint="reduce it with .mean() or .sum(); other results go into the state, or stay out",
            )
        )


@contextlib.contextmanager
def user_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turn any exception of the user's code into an ArgumentError with its place."""
    try:
        yield
    except OnwardError:
        raise
    except Exception as error:  # a function of the user may raise any type
        line = next((text for text in str(error).splitlines() if text.strip()), "")
        place = place_of(error)
        symbolic = _is_symbolic(error)
        raise ArgumentError(
            Diagnostic(
                A226 if symbolic else A221,
                f"{what} refuses a free batch size: {line[:300]}"
                if symbolic
                else f"{what} fails on the example: {type(error).__name__}: {line[:300]}",
                place=place or what,
                hint="pass dynamic=False, which fixes the batch size to that of the example"
                if symbolic
                else hint or _remedy(error),
            )
        ) from error


def _is_symbolic(error: BaseException) -> bool:
    """Return whether JAX could not decide something about the symbol that stands for the batch size."""
    text = f"{type(error).__name__} {error}"
    return isinstance(error, versions.InconclusiveSize) or any(
        word in text for word in ("symbolic dim", "Symbolic dim", "DimExpr", "dimension variable", "shape polymorphism")
    )


def _remedy(error: BaseException) -> str:
    """Return what to do about an error that only tracing has; empty for any other."""
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return (
            "functions are traced, as under jax.jit: no shape, boolean index or Python `if` may depend on data; "
            "use a mask with jnp.where, jax.lax.cond, or jnp.nonzero(..., size=n)"
        )
    if isinstance(error, NameError) and "axis name" in str(error):
        return "a file holds the step of one device: leave sums over devices out"
    return ""


def place_of(error: BaseException) -> str:
    """Return the last line of the user's code in a traceback."""
    library = (os.path.dirname(os.path.abspath(jax.__file__)), f"{os.sep}onward{os.sep}", "contextlib.py", "<")
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not any(part in frame.filename for part in library) and "site-packages" not in frame.filename and frame.line:
            found = f"{os.path.basename(frame.filename)} line {frame.lineno}: {frame.line}"
    return found
