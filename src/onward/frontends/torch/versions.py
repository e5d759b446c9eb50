"""Code that depends on the versions of PyTorch and its exporter (onward.versions lists the supported ones)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from onward import versions
from onward.backends.torch import installed_torch
from onward.errors import require_extra


def installed() -> dict[str, str]:
    """Return the versions of torch and onnxscript.

    Raises:
        MissingExtra: one of them is not installed.
    """
    torch = installed_torch("onward.from_torch")
    try:
        import onnxscript
    except ImportError as error:
        raise require_extra("onnxscript", "torch", "onward.from_torch") from error
    return {**torch, "onnxscript": onnxscript.__version__}


def check_versions() -> None:
    """Raise unless torch and onnxscript are installed and new enough."""
    versions.check(installed())


def always_used(translation: Callable[..., Any]) -> Callable[..., Any]:
    """Return `translation` in a form that every exporter uses for every call of its operator.

    The exporter, up to 2.9 at least, compares a call with the signature, and silently skips a translation if an
    optional tensor is absent. A partial has no name, so the exporter derives no signature from it.
    """
    return functools.partial(translation)
