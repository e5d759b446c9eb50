"""The profile of a lowering: which of its forms a gradient rule emits.

`default` is the fast form on ONNX Runtime's CPU kernels. `portable` avoids what other runtimes get wrong
(docs/portable.md).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

DEFAULT, PORTABLE = "default", "portable"
PROFILES = (DEFAULT, PORTABLE)

_PROFILE = contextvars.ContextVar("profile", default=DEFAULT)


@contextlib.contextmanager
def lowering_for(profile: str) -> Iterator[None]:
    """Let every gradient that is built inside the `with` block have the form of `profile`."""
    assert profile in PROFILES, profile
    token = _PROFILE.set(profile)
    try:
        yield
    finally:
        _PROFILE.reset(token)


def current() -> str:
    """Return the profile in whose form gradients are built here."""
    return _PROFILE.get()
