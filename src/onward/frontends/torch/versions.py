"""Checks that PyTorch and the exporter's onnxscript are here and new enough (onward.versions says which are)."""

from __future__ import annotations

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
