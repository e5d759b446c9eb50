"""The rules: one file per family of primitives, with the names of `autodiff/rules` where they are the same family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onward.frontends.jaxpr import versions

Named = Callable[..., Any]


class NotNamedError(Exception):
    """What the translation of a function by its name raises if it does not know this form of it."""


NAMED: dict[str, Named] = {}


def named(name: str) -> Callable[[Named], Named]:
    """Register the decorated function as the translation of a jitted function that JAX itself defines."""

    def register(function: Named) -> Named:
        NAMED[name] = function
        return function

    return register


def by_name(name: str | None, called: Any) -> Named | None:
    """Return the translation of a function of JAX by its name; None for a user's function or an unknown one."""
    found = NAMED.get(name or "")
    return found if found is not None and versions.made_by_jax(called) else None
